package io.djltp.llm;

import org.testng.Assert;
import org.testng.Reporter;

/** Numbers that another implementation computes. */
final class Expected {

    private Expected() {}

    /** Fails if a number differs by more than a share of the largest, and reports that share. */
    static void check(float[] found, double[] expected, double tolerance, String what) {
        Assert.assertEquals(found.length, expected.length, what);
        double largest = 0;
        double difference = 0;
        for (int i = 0; i < found.length; i++) {
            largest = Math.max(largest, Math.abs(expected[i]));
            double each = Math.abs(expected[i] - found[i]);
            difference = each <= difference ? difference : each; // NaN too
        }
        String figure =
                String.format("%s: differs by %.1e of the largest", what, difference / largest);
        Reporter.log(figure, Boolean.getBoolean("djltp.figures"));
        Assert.assertTrue(difference <= tolerance * largest, figure);
    }
}
