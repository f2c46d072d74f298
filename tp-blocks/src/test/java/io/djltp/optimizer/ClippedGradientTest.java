package io.djltp.optimizer;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import org.testng.annotations.Test;

/** What the guide says of DJL's limit of a gradient's elements: it is one from above only. */
public class ClippedGradientTest {

    @Test(timeOut = 60_000)
    public void djlLimitsFromAboveOnly() {
        Optimizer sgd =
                Optimizer.sgd().optClipGrad(0.25f).setLearningRateTracker(Tracker.fixed(1)).build();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray weight = manager.zeros(new Shape(2));
            sgd.update("w", weight, manager.create(new float[] {1, -1}));
            assertEquals(weight.toFloatArray(), new float[] {-0.25f, 1});
        }
    }
}
