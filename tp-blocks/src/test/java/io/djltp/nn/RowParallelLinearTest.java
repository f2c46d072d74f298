package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
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
 * A row-parallel layer is the dense layer: its outputs and all its gradients, at every size. The
 * small case has integers only, so that every order of summation gives the same bits, in 16 bits
 * too.
 */
public class RowParallelLinearTest {

    private static final float[] OUTPUT = {15, 40, 65, 39, 128, 217};
    private static final float[] INPUT_GRADIENT = {32, 38, 44, 50, 68, 83, 98, 113};
    private static final float[] WEIGHT_GRADIENT = {16, 21, 26, 31, 20, 27, 34, 41, 24, 33, 42, 51};
    private static final float[] BIAS_GRADIENT = {5, 7, 9};

    // fp32: sums of up to 129 products in another order
    private static final double TOLERANCE = 1e-6;

    @DataProvider
    public Object[][] goldenCases() {
        Object[][] cases = new Object[16][];
        int i = 0;
        for (int ranks = 1; ranks <= 4; ranks++) {
            for (DataType type : new DataType[] {DataType.FLOAT32, DataType.FLOAT16}) {
                cases[i++] = new Object[] {ranks, type, true};
                cases[i++] = new Object[] {ranks, type, false};
            }
        }
        return cases;
    }

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "goldenCases", timeOut = 60_000)
    public void everyRankHasTheWholeOutputOfTheGoldenCase(
            int ranks, DataType type, boolean inputIsParallel) {
        try (NDManager manager = NDManager.newBaseManager()) {
            LayerPass pass = goldenPass(manager, type, ranks, inputIsParallel);
            NDArray whole = manager.create(INPUT_GRADIENT, new Shape(2, 4));
            for (int rank = 0; rank < ranks; rank++) {
                String who = " of rank " + rank;
                ArrayAssert.assertExact(pass.output(rank), OUTPUT, new Shape(2, 3), "output" + who);
                Assert.assertEquals(pass.output(rank).getDataType(), type);
                ShardRange own = Cut.balanced(4, ranks).getRange(rank);
                NDArray slice = whole.get(":, {}:{}", own.start(), own.end());
                // a whole input gets the whole gradient
                ArrayAssert.assertExact(
                        pass.inputGradient(rank),
                        inputIsParallel ? slice.toFloatArray() : INPUT_GRADIENT,
                        inputIsParallel ? slice.getShape() : new Shape(2, 4),
                        "input gradient" + who);
                ArrayAssert.assertExact(
                        pass.gradient(rank, "bias"), BIAS_GRADIENT, new Shape(3), "bias" + who);
            }
            Assert.assertFalse(pass.isOutputSharded());
            ArrayAssert.assertExact(
                    pass.gatheredGradient("weight"),
                    WEIGHT_GRADIENT,
                    new Shape(3, 4),
                    "weight gradient");
        }
    }

    /** What the all-reduce of the forward pass adds up. */
    @Test(timeOut = 60_000)
    public void partialOutputsOfTwoRanksAddUp() {
        try (NDManager manager = NDManager.newBaseManager()) {
            LayerPass pass = goldenPass(manager, DataType.FLOAT32, 2, true);
            NDArray input = manager.create(Layers.count(0, 8), new Shape(2, 4));
            float[][] expected = {{1, 5, 9, 5, 41, 77}, {13, 33, 53, 33, 85, 137}};
            for (int rank = 0; rank < 2; rank++) {
                NDArray own = input.get(":, {}:{}", 2 * rank, 2 * rank + 2);
                ArrayAssert.assertExact(
                        own.dot(pass.value(rank, "weight").transpose()),
                        expected[rank],
                        new Shape(2, 3),
                        "partial output of rank " + rank);
            }
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void threeAxesAreTwoFlattened(int ranks) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray input = manager.randomNormal(new Shape(3, 5, 7));
            NDArray gradient = manager.randomNormal(new Shape(3, 5, 10));
            RowParallelLinear layer = random(manager, 10, 7, true);
            LayerPass deep = pass(ranks, layer, input, gradient);
            LayerPass flat = pass(ranks, layer, input.reshape(15, 7), gradient.reshape(15, 10));
            for (int rank = 0; rank < ranks; rank++) {
                Assert.assertEquals(deep.output(rank).getShape(), new Shape(3, 5, 10));
                long own = Cut.balanced(7, ranks).getRange(rank).length();
                Assert.assertEquals(deep.inputGradient(rank).getShape(), new Shape(3, 5, own));
                // the same products in the same order: the same bits
                assertSame(deep.output(rank), flat.output(rank));
                assertSame(deep.inputGradient(rank), flat.inputGradient(rank));
                assertSame(deep.gradient(rank, "weight"), flat.gradient(rank, "weight"));
                assertSame(deep.gradient(rank, "bias"), flat.gradient(rank, "bias"));
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
    public void unevenFeaturesAreTheDenseLayer(int ranks, long[] features) {
        try (NDManager manager = NDManager.newBaseManager()) {
            for (boolean bias : new boolean[] {true, false}) {
                RowParallelLinear layer = random(manager, 17, 129, bias);
                NDArray input = manager.randomNormal(new Shape(6, 129));
                NDArray gradient = manager.randomNormal(new Shape(6, 17));
                NDList dense = Layers.dense(layer, input, gradient);
                LayerPass pass = pass(ranks, layer, input, gradient);
                long start = 0;
                for (int rank = 0; rank < ranks; rank++) {
                    ArrayAssert.assertClose(pass.output(rank), dense.get(0), TOLERANCE, "output");
                    NDArray slice = dense.get(1).get(":, {}:{}", start, start + features[rank]);
                    start += features[rank];
                    ArrayAssert.assertClose(
                            pass.inputGradient(rank), slice, TOLERANCE, "input gradient");
                    Assert.assertEquals(
                            pass.gradient(rank, "weight").getShape(),
                            new Shape(17, features[rank]));
                    if (bias) {
                        ArrayAssert.assertClose(
                                pass.gradient(rank, "bias"), dense.get(3), TOLERANCE, "bias");
                    }
                }
                ArrayAssert.assertClose(
                        pass.gatheredGradient("weight"), dense.get(2), TOLERANCE, "weight");
            }
        }
    }

    private static LayerPass goldenPass(
            NDManager manager, DataType type, int ranks, boolean inputIsParallel) {
        RowParallelLinear layer =
                Layers.initialize(
                        RowParallelLinear.builder()
                                .setUnits(3)
                                .optInputIsParallel(inputIsParallel)
                                .build(),
                        manager,
                        type,
                        new Shape(2, 4),
                        Layers.count(0, 12),
                        Layers.count(1, 3));
        NDArray input = manager.create(Layers.count(0, 8), new Shape(2, 4)).toType(type, false);
        NDArray gradient = manager.create(Layers.count(1, 6), new Shape(2, 3)).toType(type, false);
        return LayerPass.run(
                ParallelMode.TENSOR,
                ranks,
                layer,
                input,
                gradient,
                inputIsParallel
                        ? RowParallelLinearTest::cutFeatures
                        : (whole, context) -> whole.duplicate(),
                (whole, context) -> whole.duplicate());
    }

    private static RowParallelLinear random(
            NDManager manager, int units, int features, boolean bias) {
        return Layers.initialize(
                RowParallelLinear.builder().setUnits(units).optBias(bias).build(),
                manager,
                DataType.FLOAT32,
                new Shape(1, features),
                manager.randomNormal(new Shape(units * features)).toFloatArray(),
                manager.randomNormal(new Shape(units)).toFloatArray());
    }

    private static LayerPass pass(
            int ranks, RowParallelLinear layer, NDArray input, NDArray gradient) {
        return LayerPass.run(
                ParallelMode.TENSOR,
                ranks,
                layer,
                input,
                gradient,
                RowParallelLinearTest::cutFeatures,
                (whole, context) -> whole.duplicate());
    }

    private static NDArray cutFeatures(NDArray whole, ParallelContext context) {
        int last = whole.getShape().dimension() - 1;
        return Ranks.slice(whole, last, context.getTensorGroup());
    }

    private static void assertSame(NDArray actual, NDArray expected) {
        ArrayAssert.assertBitEqual(
                ArrayAssert.floats(actual), ArrayAssert.floats(expected), "three axes");
    }
}
