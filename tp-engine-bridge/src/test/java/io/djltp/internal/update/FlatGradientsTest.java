package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Storage;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** What is summed where it lies is free as soon as the sums are closed. */
public class FlatGradientsTest {

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
