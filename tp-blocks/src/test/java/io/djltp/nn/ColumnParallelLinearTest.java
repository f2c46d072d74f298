package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.LayerPass;
import io.djltp.testing.Layers;
import io.djltp.testing.Ranks;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/**
 * A column-parallel layer is the dense layer: its outputs and all its gradients, at every size. The
 * small case has integers only, so that every order of summation gives the same bits, in 16 bits
 * too.
 */
public class ColumnParallelLinearTest {

    private static final float[] OUTPUT = {6, 16, 26, 36, 15, 52, 89, 126};
    private static final float[] INPUT_GRADIENT = {60, 70, 80, 132, 158, 184};
    private static final float[] WEIGHT_GRADIENT = {15, 21, 27, 18, 26, 34, 21, 31, 41, 24, 36, 48};
    private static final float[] BIAS_GRADIENT = {6, 8, 10, 12};

    // fp32: sums of up to 129 products in another order
    private static final double TOLERANCE = 1e-6;

    @DataProvider
    public Object[][] sizesAndTypes() {
        Object[][] cases = new Object[8][];
        for (int ranks = 1; ranks <= 4; ranks++) {
            cases[2 * ranks - 2] = new Object[] {ranks, DataType.FLOAT32};
            cases[2 * ranks - 1] = new Object[] {ranks, DataType.FLOAT16};
        }
        return cases;
    }

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "sizesAndTypes", timeOut = 60_000)
    public void everyRankHasItsSliceOfTheGoldenCase(int ranks, DataType type) {
        try (NDManager manager = NDManager.newBaseManager()) {
            ColumnParallelLinear layer = golden(manager, type, false);
            LayerPass pass = goldenPass(manager, type, ranks, layer, true);
            NDArray whole = manager.create(OUTPUT, new Shape(2, 4));
            for (int rank = 0; rank < ranks; rank++) {
                ShardRange range = Cut.balanced(4, ranks).getRange(rank);
                NDArray slice = whole.get(":, {}:{}", range.start(), range.end());
                ArrayAssert.assertExact(
                        pass.output(rank),
                        slice.toFloatArray(),
                        new Shape(2, range.length()),
                        "output of rank " + rank);
                Assert.assertEquals(pass.output(rank).getDataType(), type);
                Assert.assertEquals(pass.isOutputSharded(), ranks > 1);
                Assert.assertEquals(
                        pass.gradient(rank, "bias").getShape(), new Shape(range.length()));
            }
            assertGoldenGradients(pass, ranks);
        }
    }

    @Test(dataProvider = "sizesAndTypes", timeOut = 60_000)
    public void gatheredOutputIsWholeOnEveryRank(int ranks, DataType type) {
        try (NDManager manager = NDManager.newBaseManager()) {
            ColumnParallelLinear layer = golden(manager, type, true);
            LayerPass pass = goldenPass(manager, type, ranks, layer, false);
            for (int rank = 0; rank < ranks; rank++) {
                ArrayAssert.assertExact(pass.output(rank), OUTPUT, new Shape(2, 4), "output");
            }
            Assert.assertFalse(pass.isOutputSharded());
            assertGoldenGradients(pass, ranks);
        }
    }

    /** What the all-reduce of the backward pass adds up. */
    @Test(timeOut = 60_000)
    public void partialInputGradientsOfTwoRanksAddUp() {
        try (NDManager manager = NDManager.newBaseManager()) {
            ColumnParallelLinear layer = golden(manager, DataType.FLOAT32, false);
            LayerPass pass = goldenPass(manager, DataType.FLOAT32, 2, layer, true);
            NDArray gradient = outputGradient(manager, DataType.FLOAT32);
            float[][] expected = {{6, 9, 12, 18, 29, 40}, {54, 61, 68, 114, 129, 144}};
            for (int rank = 0; rank < 2; rank++) {
                NDArray own = gradient.get(":, {}:{}", 2 * rank, 2 * rank + 2);
                ArrayAssert.assertExact(
                        own.dot(pass.value(rank, "weight")),
                        expected[rank],
                        new Shape(2, 3),
                        "partial gradient of rank " + rank);
            }
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void threeAxesAreTwoFlattened(int ranks) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray input = manager.randomNormal(new Shape(3, 5, 7));
            NDArray gradient = manager.randomNormal(new Shape(3, 5, 10));
            ColumnParallelLinear layer = random(manager, 10, 7, true);
            LayerPass deep = pass(ranks, layer, input, gradient);
            LayerPass flat = pass(ranks, layer, input.reshape(15, 7), gradient.reshape(15, 10));
            for (int rank = 0; rank < ranks; rank++) {
                long own = Cut.balanced(10, ranks).getRange(rank).length();
                Assert.assertEquals(deep.output(rank).getShape(), new Shape(3, 5, own));
                // the same products in the same order: the same bits
                assertSame(deep.output(rank), flat.output(rank));
                assertSame(deep.inputGradient(rank), flat.inputGradient(rank));
                assertSame(deep.gradient(rank, "weight"), flat.gradient(rank, "weight"));
                Assert.assertEquals(deep.gradient(rank, "bias").getShape(), new Shape(own));
                ArrayAssert.assertClose(
                        deep.gradient(rank, "bias"),
                        flat.gradient(rank, "bias"),
                        TOLERANCE, // summed over two axes instead of one
                        "bias gradient");
            }
        }
    }

    @DataProvider
    public Object[][] unevenSizes() {
        return new Object[][] {
            {2, new long[] {65, 64}}, {3, new long[] {43, 43, 43}}, {4, new long[] {33, 32, 32, 32}}
        };
    }

    @Test(dataProvider = "unevenSizes", timeOut = 60_000)
    public void unevenUnitsAreTheDenseLayer(int ranks, long[] units) {
        try (NDManager manager = NDManager.newBaseManager()) {
            for (boolean bias : new boolean[] {true, false}) {
                ColumnParallelLinear layer = random(manager, 129, 17, bias);
                NDArray input = manager.randomNormal(new Shape(6, 17));
                NDArray gradient = manager.randomNormal(new Shape(6, 129));
                NDList dense = Layers.dense(layer, input, gradient);
                LayerPass pass = pass(ranks, layer, input, gradient);
                long start = 0;
                for (int rank = 0; rank < ranks; rank++) {
                    NDArray slice = dense.get(0).get(":, {}:{}", start, start + units[rank]);
                    start += units[rank];
                    ArrayAssert.assertClose(pass.output(rank), slice, TOLERANCE, "output");
                    ArrayAssert.assertClose(
                            pass.inputGradient(rank), dense.get(1), TOLERANCE, "input gradient");
                    Assert.assertEquals(
                            pass.gradient(rank, "weight").getShape(), new Shape(units[rank], 17));
                }
                ArrayAssert.assertClose(
                        pass.gatheredGradient("weight"), dense.get(2), TOLERANCE, "weight");
                if (bias) {
                    ArrayAssert.assertClose(
                            pass.gatheredGradient("bias"), dense.get(3), TOLERANCE, "bias");
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aFrozenWeightGetsNoGradientAndCommunicatesNone() {
        try (NDManager manager = NDManager.newBaseManager()) {
            float[] ones = new float[64];
            Arrays.fill(ones, 1);
            ColumnParallelLinear layer =
                    Layers.initialize(
                            ColumnParallelLinear.builder().setUnits(8).optBias(false).build(),
                            manager,
                            DataType.FLOAT32,
                            new Shape(8, 8),
                            ones,
                            null);
            layer.freezeParameters(true);
            LayerPass pass = pass(8, layer, manager.eye(8), manager.ones(new Shape(8, 8)));
            for (int rank = 0; rank < 8; rank++) {
                float[] column = new float[8];
                Arrays.fill(column, 1);
                ArrayAssert.assertExact(pass.output(rank), column, new Shape(8, 1), "output");
                float[] eights = new float[64];
                Arrays.fill(eights, 8);
                ArrayAssert.assertExact(
                        pass.inputGradient(rank), eights, new Shape(8, 8), "input gradient");
                Assert.assertFalse(pass.value(rank, "weight").hasGradient());
                Assert.assertNull(pass.gradient(rank, "weight"));
            }
            // of the input's gradient only
            Assert.assertEquals(pass.backwardCounts().toString(), "1 all-reduce");
        }
    }

    private static ColumnParallelLinear golden(NDManager manager, DataType type, boolean gather) {
        return Layers.initialize(
                ColumnParallelLinear.builder().setUnits(4).optGatherOutput(gather).build(),
                manager,
                type,
                new Shape(2, 3),
                Layers.count(0, 12),
                Layers.count(1, 4));
    }

    private static NDArray outputGradient(NDManager manager, DataType type) {
        return manager.create(Layers.count(1, 8), new Shape(2, 4)).toType(type, false);
    }

    private static LayerPass goldenPass(
            NDManager manager, DataType type, int ranks, ColumnParallelLinear layer, boolean cut) {
        return LayerPass.run(
                ParallelMode.TENSOR,
                ranks,
                layer,
                manager.create(Layers.count(0, 6), new Shape(2, 3)).toType(type, false),
                outputGradient(manager, type),
                (input, context) -> input.duplicate(),
                (gradient, context) ->
                        cut
                                ? Ranks.slice(gradient, 1, context.getTensorGroup())
                                : gradient.duplicate());
    }

    private static void assertGoldenGradients(LayerPass pass, int ranks) {
        for (int rank = 0; rank < ranks; rank++) {
            ArrayAssert.assertExact(
                    pass.inputGradient(rank),
                    INPUT_GRADIENT,
                    new Shape(2, 3),
                    "input gradient of rank " + rank);
        }
        ArrayAssert.assertExact(
                pass.gatheredGradient("weight"),
                WEIGHT_GRADIENT,
                new Shape(4, 3),
                "weight gradient");
        ArrayAssert.assertExact(
                pass.gatheredGradient("bias"), BIAS_GRADIENT, new Shape(4), "bias gradient");
    }

    private static ColumnParallelLinear random(
            NDManager manager, int units, int features, boolean bias) {
        return Layers.initialize(
                ColumnParallelLinear.builder().setUnits(units).optBias(bias).build(),
                manager,
                DataType.FLOAT32,
                new Shape(1, features),
                manager.randomNormal(new Shape(units * features)).toFloatArray(),
                manager.randomNormal(new Shape(units)).toFloatArray());
    }

    private static LayerPass pass(
            int ranks, ColumnParallelLinear layer, NDArray input, NDArray gradient) {
        int last = gradient.getShape().dimension() - 1;
        return LayerPass.run(
                ParallelMode.TENSOR,
                ranks,
                layer,
                input,
                gradient,
                (whole, context) -> whole.duplicate(),
                (whole, context) -> Ranks.slice(whole, last, context.getTensorGroup()));
    }

    private static void assertSame(NDArray actual, NDArray expected) {
        ArrayAssert.assertBitEqual(
                ArrayAssert.floats(actual), ArrayAssert.floats(expected), "three axes");
    }
}
