package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.LayerPass;
import io.djltp.testing.LayerPass.Part;
import io.djltp.testing.Layers;
import io.djltp.testing.Ranks;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** The layers communicate what their mathematics needs, and nothing else. */
public class CollectiveCountsTest {

    @DataProvider
    public Object[][] layers() {
        ColumnParallelLinear.Builder column = ColumnParallelLinear.builder().setUnits(8);
        ColumnParallelLinear.Builder gathered =
                ColumnParallelLinear.builder().setUnits(8).optGatherOutput(true);
        ColumnParallelLinear.Builder head =
                ColumnParallelLinear.builder().setUnits(8).optBatchShardedInput(true);
        RowParallelLinear.Builder row = RowParallelLinear.builder().setUnits(8);
        RowParallelLinear.Builder whole =
                RowParallelLinear.builder().setUnits(8).optInputIsParallel(false);
        RowParallelLinear.Builder tail =
                RowParallelLinear.builder().setUnits(8).optBatchShardedOutput(true);
        ParallelMode tensor = ParallelMode.TENSOR;
        ParallelMode mixed = ParallelMode.MIXED;
        return new Object[][] {
            {"column", tensor, column.build(), Part.WHOLE, Part.FEATURES, "none", "1 all-reduce"},
            {
                "column, output gathered",
                tensor,
                gathered.build(),
                Part.WHOLE,
                Part.WHOLE,
                "1 all-gather",
                "1 all-reduce"
            },
            {
                "column, batch-sharded input",
                mixed,
                head.build(),
                Part.ROWS,
                Part.FEATURES,
                "1 all-gather",
                "1 reduce-scatter"
            },
            {"row", tensor, row.build(), Part.FEATURES, Part.WHOLE, "1 all-reduce", "none"},
            {
                "row, whole input",
                tensor,
                whole.build(),
                Part.WHOLE,
                Part.WHOLE,
                "1 all-reduce",
                "1 all-gather"
            },
            {
                "row, batch-sharded output",
                mixed,
                tail.build(),
                Part.FEATURES,
                Part.ROWS,
                "1 reduce-scatter",
                "1 all-gather"
            },
        };
    }

    @Test(dataProvider = "layers", timeOut = 60_000)
    public void aLayerCommunicatesOnce(
            String name,
            ParallelMode mode,
            AbstractParallelLinear layer,
            Part input,
            Part output,
            String forward,
            String backward) {
        for (int ranks : new int[] {1, 2, 4}) {
            try (NDManager manager = NDManager.newBaseManager()) {
                Layers.initialize(
                        layer,
                        manager,
                        DataType.FLOAT32,
                        new Shape(4, 6),
                        Layers.count(0, 48),
                        Layers.count(0, 8));
                LayerPass pass =
                        LayerPass.run(
                                mode,
                                ranks,
                                layer,
                                manager.ones(new Shape(4, 6)),
                                manager.ones(new Shape(4, 8)),
                                input,
                                output);
                String what = name + " on " + ranks + " ranks";
                boolean single = ranks == 1; // alone, there is nobody to talk to
                Assert.assertEquals(
                        pass.forwardCounts().toString(), single ? "none" : forward, what);
                Assert.assertEquals(
                        pass.backwardCounts().toString(), single ? "none" : backward, what);
                layer.clear();
            }
        }
    }

    /** Of an input that needs no gradient, such as the data, nothing is reduced. */
    @Test(timeOut = 60_000)
    public void theDataNeedNoGradient() {
        List<CollectiveCounts> counts =
                Ranks.run(
                        ParallelMode.TENSOR,
                        2,
                        context -> {
                            try (NDManager manager = NDManager.newBaseManager()) {
                                NDArray weight = manager.ones(new Shape(3, 4));
                                weight.setRequiresGradient(true);
                                NDArray data = manager.ones(new Shape(2, 4));
                                NDArray copy = context.getMappings().copyToRegion(data, true);
                                NDArray product = copy.dot(weight.transpose());
                                Autograd.backward(product, product.onesLike());
                                return context.getCounts();
                            }
                        });
        Assert.assertEquals(counts.get(0).total(), 0);
    }

    /** As in attention: query, key and value of one input. */
    @Test(timeOut = 60_000)
    public void threeProductsOfOneInputReduceItsGradientOnce() {
        List<CollectiveCounts> counts =
                Ranks.run(
                        ParallelMode.TENSOR,
                        4,
                        context -> {
                            try (NDManager manager = NDManager.newBaseManager()) {
                                NDArray input = manager.ones(new Shape(2, 3));
                                input.setRequiresGradient(true);
                                NDArray copy = context.getMappings().copyToRegion(input);
                                NDArray sum = manager.zeros(new Shape(2, 5));
                                for (int factor = 1; factor <= 3; factor++) {
                                    NDArray weight = manager.full(new Shape(3, 5), (float) factor);
                                    sum = sum.add(copy.dot(weight));
                                }
                                Autograd.backward(sum, sum.onesLike());
                                NDArray gradient = Autograd.gradient(input);
                                // 5 columns, factors 1 to 3, 4 ranks
                                Assert.assertTrue(gradient.eq(5 * 6 * 4).all().getBoolean());
                                return context.getCounts();
                            }
                        });
        Assert.assertEquals(counts.get(0).toString(), "1 all-reduce");
    }
}
