package io.djltp.examples.train;

import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.optimizer.RowwiseAdagrad;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The bytes that a rank holds, worked out by hand. */
public class RunMemoryTest {

    private static final Shape TABLE = new Shape(7, 5);
    private static final Shape LARGE = new Shape(500_000, 64);

    @DataProvider
    public Object[][] ranks() {
        Tracker rate = Tracker.fixed(0.1f);
        Optimizer sgd = Optimizer.sgd().setLearningRateTracker(rate).build();
        Optimizer momentum = Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
        Optimizer adam = Optimizer.adam().build();
        Optimizer rowwise = RowwiseAdagrad.builder().build();
        Shape two = new Shape(2, 5);
        return new Object[][] {
            {sgd, two, false, 8, new long[] {180, 0, 0, 64}},
            {sgd, two, true, 8, new long[] {180, 40, 0, 128}},
            {momentum, two, true, 8, new long[] {180, 180, 180, 128}},
            {adam, two, false, 8, new long[] {180, 140, 360, 64}},
            {rowwise, two, false, 8, new long[] {180, 0, 4 * (7 + 2), 64}},
            {sgd, LARGE, false, 1024, of(0, (64L << 20) + 500_000L * 64 * 3)},
            {sgd, LARGE, true, 1024, of(4L * 500_000 * 64, 2L * 4 * 500_000 * 1024)}
        };
    }

    private static long[] of(long gradient, long logits) {
        return new long[] {140 + 4L * 500_000 * 64, gradient, 0, logits};
    }

    @Test(dataProvider = "ranks")
    public void bytes(Optimizer optimizer, Shape head, boolean full, long rows, long[] expected) {
        OptimizerSettings settings = OptimizerSettings.of(optimizer);
        Assert.assertEquals(RunMemory.bytes(settings, TABLE, head, full, rows), expected);
    }
}
