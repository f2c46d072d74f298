package io.djltp.examples.train;

import org.testng.Assert;
import org.testng.annotations.Test;

/** The rates of Adagrad stay for a while, and then fall in a line to a fifth. */
public class LearningRatesTest {

    @Test
    public void theyFallTowardsTheEndOfTheRun() {
        double[][] expected = {{0, 1}, {0.3, 1}, {0.65, 0.6}, {1, 0.2}, {1.5, 0.2}};
        for (double[] each : expected) {
            Assert.assertEquals(TrainOptions.rateFactor(each[0]), each[1], 1e-6, "at " + each[0]);
        }
    }
}
