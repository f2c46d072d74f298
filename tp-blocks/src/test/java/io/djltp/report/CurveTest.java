package io.djltp.report;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.report.TrainingReport.Curve;

import org.testng.Assert;
import org.testng.annotations.Test;

/**
 * However many values a curve gets, it has at most so many points, and their mean is that of all.
 */
public class CurveTest {

    @Test
    public void fewValuesAreThePoints() {
        Curve curve = new Curve("loss", "training", "");
        curve.add(1, 4);
        curve.add(2, Double.NaN); // a loss that has left the numbers
        curve.add(3, 2);
        JsonObject json = curve.toJson();
        Assert.assertEquals(json.get("x").toString(), "[1,2,3]");
        Assert.assertEquals(json.get("y").toString(), "[4.0,null,2.0]");
        Assert.assertEquals(json.get("mean").getAsInt(), 1);
    }

    @Test
    public void manyValuesBecomeMeansOfNeighbours() {
        Curve curve = new Curve("loss", "training", "");
        int steps = 10_000;
        for (int step = 1; step <= steps; step++) {
            curve.add(step, step);
        }
        JsonObject json = curve.toJson();
        JsonArray x = json.get("x").getAsJsonArray();
        JsonArray y = json.get("y").getAsJsonArray();
        int mean = json.get("mean").getAsInt();
        Assert.assertEquals(mean, 16, "10,000 values in less than 1,024 points");
        Assert.assertEquals(x.size(), steps / mean);
        for (int i = 0; i < x.size(); i++) {
            long last = (i + 1L) * mean;
            Assert.assertEquals(x.get(i).getAsLong(), last);
            Assert.assertEquals(y.get(i).getAsDouble(), last - (mean - 1) / 2.0, 1e-3);
        }
    }

    /** A container has a limit of its own, below what the machine has. */
    @Test
    public void theLimitOfAContainerCounts() {
        Assert.assertEquals(SystemMemory.within(1000, 300, 5000), 700);
        Assert.assertEquals(SystemMemory.within(9000, 300, 5000), 5000);
        Assert.assertEquals(SystemMemory.within(1000, 1300, 5000), 0);
    }
}
