package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Storage;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;

/** Ranks have as many elements, and what is summed where it lies is free afterwards. */
public class FlatGradientsTest {

    @DataProvider
    public Object[][] weights() {
        return new Object[][] {
            {List.of(4_096L, 64L, 4_096L, 64L)},
            {List.of(407L, 37L, 37L, 1L, 19L, 19L, 551L, 29L, 145L, 5L)},
            {List.of(1_000_003L)},
            {List.of(3L, 5L)},
            {List.of(0L, 1L << 40, 7L)},
        };
    }

    /**
     * The ranges of the ranks follow one another, and begin where a register of the weight does.
     */
    @Test(dataProvider = "weights")
    public void ranksHaveAsManyElements(List<Long> weights) {
        long all = weights.stream().mapToLong(each -> each).sum();
        for (int ranks = 1; ranks < 9; ranks++) {
            List<Cut> cuts = FlatGradients.cut(weights, ranks);
            int last = 0;
            for (int k = 0; k < weights.size(); k++) {
                Assert.assertEquals(cuts.get(k).getLength(), weights.get(k));
                Assert.assertTrue(cuts.get(k).isConsecutive());
                for (int rank = 0; rank < ranks; rank++) {
                    ShardRange range = cuts.get(k).getRange(rank);
                    if (range.length() > 0) {
                        Assert.assertTrue(rank >= last, cuts.toString());
                        Assert.assertEquals(range.start() % 16, 0);
                        last = rank;
                    }
                }
            }
            for (int rank = 0; rank < ranks; rank++) {
                int place = rank;
                long own = cuts.stream().mapToLong(cut -> cut.getShardLength(place)).sum();
                Assert.assertEquals(own, (double) all / ranks, 16, cuts.toString());
            }
        }
    }

    @Test(timeOut = 60_000)
    public void nothingHoldsTheMemoryOfAGradientAfterwards() throws Exception {
        RankThreads.run(
                3,
                (group, manager) -> {
                    NDArray gradient = manager.ones(new Shape(5, 7));
                    long before = references(gradient);
                    int size = group.getSize();
                    try (FlatGradients flat = FlatGradients.over(gradient, size, group.getRank())) {
                        TensorView all = flat.getAll();
                        long[] shares = flat.getShares();
                        group.reduceScatter(all, flat.getOwn(), shares, ReduceOp.SUM).await();
                        group.allGather(flat.getOwn(), all, shares).await();
                    }
                    float[] sums = new float[35];
                    Arrays.fill(sums, size);
                    Assert.assertEquals(gradient.toFloatArray(), sums);
                    Assert.assertEquals(references(gradient), before);
                });
    }

    private static long references(NDArray array) {
        try (Storage storage = TensorView.of(array).tensor().storage()) {
            return storage.use_count();
        }
    }
}
