package io.djltp.conformance;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.parameters.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.LayerPass;
import io.djltp.testing.Layers;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/**
 * Conformance cases 11 and 13: 129 features on 2 and 4 ranks, the output gathered, and parameters
 * that are cut and put together again, bit for bit; and a frozen layer that is cut by its input.
 */
public class UnevenLayersTest {

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{2}, {4}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void theGatheredOutputIsThatOfTheDenseLayer(int ranks) {
        ColumnParallelLinear column =
                ColumnParallelLinear.builder().setUnits(129).optGatherOutput(true).build();
        check(ranks, column, 17, 129);
        RowParallelLinear row =
                RowParallelLinear.builder().setUnits(17).optInputIsParallel(false).build();
        check(ranks, row, 129, 17);
    }

    private static <L extends Linear & ShardedBlock> void check(
            int ranks, L layer, int features, int units) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Layers.initialize(
                    layer,
                    manager,
                    DataType.FLOAT32,
                    new Shape(1, features),
                    TrainingRun.random(manager, 1, (long) units * features).toFloatArray(),
                    TrainingRun.random(manager, 2, units).toFloatArray());
            NDArray input = TrainingRun.random(manager, 3, 6, features);
            NDArray gradient = TrainingRun.random(manager, 4, 6, units);
            NDList dense = Layers.dense(layer, input, gradient);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.TENSOR,
                            ranks,
                            layer,
                            input,
                            gradient,
                            (whole, context) -> whole.duplicate(),
                            (whole, context) -> whole.duplicate());
            for (int rank = 0; rank < ranks; rank++) {
                ArrayAssert.assertClose(pass.output(rank), dense.get(0), 1e-6, "output");
                ArrayAssert.assertClose(pass.inputGradient(rank), dense.get(1), 1e-6, "dX");
            }
            ArrayAssert.assertClose(pass.gatheredGradient("weight"), dense.get(2), 1e-6, "dW");
            for (var named : layer.getDirectParameters()) {
                NDArray whole = named.getValue().getArray();
                ShardingStrategy strategy = layer.getShardingStrategy(named.getValue());
                NDArray again = manager.zeros(whole.getShape());
                for (int rank = 0; rank < ranks; rank++) {
                    strategy.gather(pass.value(rank, named.getKey()), again, rank, ranks);
                }
                ArrayAssert.assertBitEqual(
                        again.toFloatArray(), whole.toFloatArray(), named.getKey());
            }
            layer.clear();
        }
    }

    /** Case 11 of a row-parallel layer: each rank has one of eight input features. */
    @Test(timeOut = 60_000)
    public void aFrozenLayerCutByItsInput() {
        try (NDManager manager = NDManager.newBaseManager()) {
            float[] ones = new float[64];
            Arrays.fill(ones, 1);
            RowParallelLinear layer =
                    Layers.initialize(
                            RowParallelLinear.builder()
                                    .setUnits(8)
                                    .optBias(false)
                                    .optInputIsParallel(false)
                                    .build(),
                            manager,
                            DataType.FLOAT32,
                            new Shape(8, 8),
                            ones,
                            null);
            layer.freezeParameters(true);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.TENSOR,
                            8,
                            layer,
                            manager.eye(8),
                            manager.ones(new Shape(8, 8)),
                            (whole, context) -> whole.duplicate(),
                            (whole, context) -> whole.duplicate());
            float[] eights = new float[64];
            Arrays.fill(eights, 8);
            for (int rank = 0; rank < 8; rank++) {
                ArrayAssert.assertExact(pass.output(rank), ones, new Shape(8, 8), "output");
                ArrayAssert.assertExact(
                        pass.inputGradient(rank), eights, new Shape(8, 8), "input gradient");
                Assert.assertNull(pass.gradient(rank, "weight"));
            }
            // of the outputs, and of the slices of the input's gradient
            Assert.assertEquals(pass.forwardCounts().toString(), "1 all-reduce");
            Assert.assertEquals(pass.backwardCounts().toString(), "1 all-gather");
        }
    }
}
