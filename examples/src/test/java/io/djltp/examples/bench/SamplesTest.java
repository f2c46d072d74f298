package io.djltp.examples.bench;

import io.djltp.examples.OptimizerName;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** The figures that are made of others. */
public class SamplesTest {

    @Test
    public void testSpreadIsTheDistanceOfTheQuartiles() {
        List<Double> values = List.of(5d, 1d, 4d, 2d, 3d);
        Assert.assertEquals(Samples.median(values), 3d, 1e-12);
        // the quartiles of 1..5 are 2 and 4, at most half a step away in other definitions
        Assert.assertEquals(Samples.spread(values), 2 / 3d, 1 / 3d);
        Assert.assertEquals(Samples.spread(List.of(2d, 2d, 2d)), 0d, 1e-12);
    }

    @Test
    public void testFloorIsTheLargerOfComputingAndMoving() {
        Workload head = new Workload(Workload.Network.HEAD, 64, 128, 1000);
        // 6 x 64 x 128 x 1000 operations
        Floor slow = new Floor(Precision.FLOAT32, List.of(1e6, 2e6), List.of(1e12));
        Assert.assertEquals(slow.seconds(head, OptimizerName.SGD), 49.152e6 / 2e6, 1e-9);
        // the weight of 128,000 floats is moved 3 times, two arrays of state 2 times each
        Floor narrow = new Floor(Precision.FLOAT32, List.of(1e15), List.of(1e6));
        Assert.assertEquals(narrow.seconds(head, OptimizerName.SGD), 3 * 0.512, 1e-9);
        Assert.assertEquals(narrow.seconds(head, OptimizerName.ADAM), 7 * 0.512, 1e-9);
        Assert.assertTrue(narrow.describe(head, OptimizerName.SGD).contains("sgd, float32: bytes"));
        Assert.assertTrue(
                slow.describe(head, OptimizerName.SGD).contains("sgd, float32: operations"));
        // 4 blocks of two matrices
        Workload layer = new Workload(Workload.Network.LAYER, 64, 128, 1000);
        Assert.assertEquals(slow.seconds(layer, OptimizerName.SGD), 8 * 49.152e6 / 2e6, 1e-9);
    }
}
