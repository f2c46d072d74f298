package io.djltp.nn;

import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.sharding.ShardingStrategy;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Bytes by hand: of 7 rows of 5 elements on 3 ranks, whose shards have 3, 2 and 2 rows. */
public class MemoryEstimateTest {

    private static final Shape SHAPE = new Shape(7, 5);

    @DataProvider
    public Object[][] optimizers() {
        return new Object[][] {
            {sgd().build(), 0},
            {sgd().optMomentum(0.9f).build(), 1},
            {Optimizer.adam().build(), 2},
            {Optimizer.adamW().build(), 2}
        };
    }

    private static Sgd.Builder sgd() {
        return Optimizer.sgd().setLearningRateTracker(Tracker.fixed(0.1f));
    }

    @Test(dataProvider = "optimizers")
    public void aShardItsGradientAndItsState(Optimizer optimizer, int states) {
        for (int rank = 0; rank < 3; rank++) {
            long shard = 4L * 5 * (rank == 0 ? 3 : 2);
            MemoryEstimate estimate =
                    new MemoryEstimate(OptimizerSettings.of(optimizer), rank, 3)
                            .addParameter(SHAPE, ShardingStrategy.rowwise())
                            .addParameter(SHAPE, ShardingStrategy.replicate());
            Assert.assertEquals(estimate.getWeights(), shard + 140);
            Assert.assertEquals(estimate.getGradients(), shard + 140);
            Assert.assertEquals(estimate.getState(), states * (shard + 140));
            Assert.assertEquals(estimate.getTotal(), (2 + states) * (shard + 140));
        }
    }

    @Test
    public void oneNumberOfStateForEachRow() {
        OptimizerSettings adagrad = OptimizerSettings.of(RowwiseAdagrad.builder().build());
        MemoryEstimate estimate =
                new MemoryEstimate(adagrad, 1, 3).addTable(SHAPE).addHead(SHAPE, 8);
        Assert.assertEquals(estimate.getWeights(), 4 * (35 + 10));
        Assert.assertEquals(estimate.getGradients(), 0);
        Assert.assertEquals(estimate.getState(), 4 * (7 + 2));
        Assert.assertEquals(estimate.getLogits(), 4 * 8 * 2);
    }

    @Test
    public void logitsThatAreKeptAndLogitsThatAreWhole() {
        OptimizerSettings sgd = OptimizerSettings.of(sgd().build());
        Shape large = new Shape(1_000_000, 64);
        MemoryEstimate fused = new MemoryEstimate(sgd, 0, 2).addHead(large, 1024);
        Assert.assertEquals(fused.getLogits(), (64L << 20) + 500_000L * 64 * 3);
        Assert.assertEquals(fused.getGradients(), 0);
        MemoryEstimate whole = new MemoryEstimate(sgd, 0, 2).addWholeLogits(large, 1024);
        Assert.assertEquals(whole.getLogits(), 2L * 4 * 500_000 * 1024);
        Assert.assertEquals(whole.getGradients(), 4L * 500_000 * 64);
    }
}
