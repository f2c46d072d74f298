package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.LayerPass;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.function.BiFunction;

/** What a pass through the block communicates, as its documentation says. */
public class MixtureCollectivesTest {

    @DataProvider
    public static Object[][] counts() {
        // all-reduce, all-gather, all-to-all, reduce-scatter; forward, then backward
        return new Object[][] {
            {ParallelMode.TENSOR, false, new long[] {1, 0, 0, 0}, new long[] {1, 0, 0, 0}},
            {ParallelMode.TENSOR, true, new long[] {0, 1, 2, 0}, new long[] {0, 1, 2, 0}},
            {ParallelMode.MIXED, false, new long[] {0, 1, 2, 0}, new long[] {0, 0, 2, 0}},
            {ParallelMode.DATA, false, new long[] {0, 1, 0, 0}, new long[] {0, 0, 0, 0}}
        };
    }

    @Test(dataProvider = "counts", timeOut = 60_000)
    public void expertParallel(
            ParallelMode mode, boolean exchange, long[] forward, long[] backward) {
        MixtureOfExperts.Builder options = options().optExchangeTokens(exchange);
        check(mode, options, forward, backward);
    }

    @Test(timeOut = 60_000)
    public void tensorParallel() {
        MixtureOfExperts.Builder options = options().optStrategy(ShardingStrategy.tensorParallel());
        long[] one = {1, 0, 0, 0};
        check(ParallelMode.TENSOR, options, one, one);
        // of counts, tokens and choices
        check(ParallelMode.MIXED, options, new long[] {0, 3, 0, 1}, new long[] {0, 1, 0, 1});
    }

    private static MixtureOfExperts.Builder options() {
        return MixtureOfExperts.builder().setExperts(5).setHiddenFeatures(6).optCapacityFactor(1);
    }

    private static void check(
            ParallelMode mode, MixtureOfExperts.Builder options, long[] forward, long[] backward) {
        MixtureOfExperts block = options.build();
        try (NDManager manager = NDManager.newBaseManager()) {
            block.initialize(manager, DataType.FLOAT32, new Shape(7, 4));
            NDArray input = TrainingRun.random(manager, 1, 7, 4);
            NDArray gradient = TrainingRun.random(manager, 2, 7, 4);
            boolean cut = mode != ParallelMode.TENSOR;
            BiFunction<NDArray, ParallelContext, NDArray> own =
                    (array, context) ->
                            cut ? Ranks.slice(array, 0, context.getDataGroup()) : array.duplicate();
            LayerPass pass = LayerPass.run(mode, 3, block, input, gradient, own, own);
            assertCounts(pass.forwardCounts(), forward);
            assertCounts(pass.backwardCounts(), backward);
        }
    }

    private static void assertCounts(CollectiveCounts counts, long[] expected) {
        Assert.assertEquals(counts.get(Collective.ALL_REDUCE), expected[0], counts.toString());
        Assert.assertEquals(counts.get(Collective.ALL_GATHER), expected[1], counts.toString());
        Assert.assertEquals(counts.get(Collective.ALL_TO_ALL), expected[2], counts.toString());
        Assert.assertEquals(counts.get(Collective.REDUCE_SCATTER), expected[3], counts.toString());
        long total = Arrays.stream(expected).sum();
        Assert.assertEquals(counts.total(), total, counts.toString());
    }
}
