package io.djltp.nn;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.scattered;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelContext;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.LayerPass;
import io.djltp.testing.Layers;
import io.djltp.testing.Ranks;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * In MIXED mode a layer gathers a batch that is cut over the ranks, or cuts it again, and is still
 * the dense layer. Four rows of integers, so that the parts are uneven on three ranks and every
 * order of summation gives the same bits.
 */
public class BatchShardedLayersTest {

    private static final int ROWS = 4;

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void aColumnLayerGathersTheBatch(int ranks) {
        try (NDManager manager = NDManager.newBaseManager()) {
            ColumnParallelLinear layer = initialize(manager, head(5));
            Expected expected = new Expected(manager, layer);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.MIXED,
                            ranks,
                            layer,
                            expected.input,
                            expected.gradient,
                            BatchShardedLayersTest::cutRows,
                            (whole, context) -> Ranks.slice(whole, 1, context.getTensorGroup()));
            for (int rank = 0; rank < ranks; rank++) {
                ShardRange units = Cut.balanced(5, ranks).getRange(rank);
                assertExact(
                        pass.output(rank),
                        expected.output.get(":, {}:{}", units.start(), units.end()));
                assertExact(pass.inputGradient(rank), rows(expected.inputGradient, rank, ranks));
            }
            assertExact(pass.gatheredGradient("weight"), expected.weightGradient);
            assertExact(pass.gatheredGradient("bias"), expected.biasGradient);
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void aRowLayerCutsTheBatchAgain(int ranks) {
        try (NDManager manager = NDManager.newBaseManager()) {
            RowParallelLinear layer = initialize(manager, scattered(5));
            Expected expected = new Expected(manager, layer);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.MIXED,
                            ranks,
                            layer,
                            expected.input,
                            expected.gradient,
                            (whole, context) -> Ranks.slice(whole, 1, context.getTensorGroup()),
                            BatchShardedLayersTest::cutRows);
            NDArray bias = manager.zeros(new Shape(5));
            for (int rank = 0; rank < ranks; rank++) {
                ShardRange features = Cut.balanced(4, ranks).getRange(rank);
                assertExact(pass.output(rank), rows(expected.output, rank, ranks));
                assertExact(
                        pass.inputGradient(rank),
                        expected.inputGradient.get(":, {}:{}", features.start(), features.end()));
                bias.addi(pass.gradient(rank, "bias"));
            }
            assertExact(pass.gatheredGradient("weight"), expected.weightGradient);
            assertExact(bias, expected.biasGradient); // each rank has that of its rows
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void aRowLayerGathersTheBatchOfAWholeInput(int ranks) {
        try (NDManager manager = NDManager.newBaseManager()) {
            RowParallelLinear layer =
                    initialize(
                            manager,
                            RowParallelLinear.builder()
                                    .setUnits(5)
                                    .optInputIsParallel(false)
                                    .optBatchShardedInput(true)
                                    .build());
            Expected expected = new Expected(manager, layer);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.MIXED,
                            ranks,
                            layer,
                            expected.input,
                            expected.gradient,
                            BatchShardedLayersTest::cutRows,
                            (whole, context) -> whole.duplicate());
            for (int rank = 0; rank < ranks; rank++) {
                assertExact(pass.output(rank), expected.output);
                assertExact(pass.inputGradient(rank), rows(expected.inputGradient, rank, ranks));
                assertExact(pass.gradient(rank, "bias"), expected.biasGradient);
            }
            assertExact(pass.gatheredGradient("weight"), expected.weightGradient);
        }
    }

    @Test(timeOut = 60_000)
    public void inTheOtherModesThereIsNothingToGatherOrCut() {
        try (NDManager manager = NDManager.newBaseManager()) {
            ColumnParallelLinear layer = initialize(manager, head(5));
            Expected expected = new Expected(manager, layer);
            LayerPass pass =
                    LayerPass.run(
                            ParallelMode.TENSOR,
                            2,
                            layer,
                            expected.input,
                            expected.gradient,
                            (whole, context) -> whole.duplicate(),
                            (whole, context) -> Ranks.slice(whole, 1, context.getTensorGroup()));
            assertExact(pass.inputGradient(1), expected.inputGradient);
            Assert.assertEquals(pass.forwardCounts().total(), 0);
        }
    }

    private static <B extends AbstractParallelLinear> B initialize(NDManager manager, B layer) {
        return Layers.initialize(
                layer,
                manager,
                DataType.FLOAT32,
                new Shape(ROWS, 4),
                Layers.count(-7, 20),
                Layers.count(1, 5));
    }

    private static NDArray cutRows(NDArray whole, ParallelContext context) {
        return Ranks.slice(whole, 0, context.getDataGroup());
    }

    private static NDArray rows(NDArray whole, int rank, int ranks) {
        ShardRange rows = Cut.balanced(ROWS, ranks).getRange(rank);
        return whole.get("{}:{}", rows.start(), rows.end());
    }

    private static void assertExact(NDArray actual, NDArray expected) {
        ArrayAssert.assertExact(actual, expected.toFloatArray(), expected.getShape(), "batch");
    }

    /** What DJL's layer gives. */
    private static final class Expected {

        private final NDArray input;
        private final NDArray gradient;
        private final NDArray output;
        private final NDArray inputGradient;
        private final NDArray weightGradient;
        private final NDArray biasGradient;

        Expected(NDManager manager, AbstractParallelLinear layer) {
            input = manager.create(Layers.count(-8, ROWS * 4), new Shape(ROWS, 4));
            gradient = manager.create(Layers.count(-9, ROWS * 5), new Shape(ROWS, 5));
            var dense = Layers.dense(layer, input, gradient);
            output = dense.get(0);
            inputGradient = dense.get(1);
            weightGradient = dense.get(2);
            biasGradient = dense.get(3);
        }
    }
}
