package io.djltp.nn;

import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.LayerPass;
import io.djltp.testing.LayerPass.Part;
import io.djltp.testing.Layers;
import io.djltp.testing.Ranks;
import io.djltp.testing.RecordedTest;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A column-parallel or row-parallel layer is the dense layer: its outputs and all its gradients, at
 * every size, whatever a rank has of its input and output. The small cases have integers only, so
 * that every order of summation gives the same bits, in 16 bits too.
 */
public class ParallelLinearTest extends RecordedTest {

    // fp32: sums of up to 129 products in another order
    private static final double TOLERANCE = 1e-6;

    /** A layer, and what a rank has of its input and output. */
    private enum Kind {
        COLUMN(Part.WHOLE, Part.FEATURES, "none", "1 all-reduce"),
        GATHERED(Part.WHOLE, Part.WHOLE, "1 all-gather", "1 all-reduce"),
        ROW(Part.FEATURES, Part.WHOLE, "1 all-reduce", "none"),
        ROW_OF_WHOLE_INPUTS(Part.WHOLE, Part.WHOLE, "1 all-reduce", "1 all-gather"),
        // in MIXED mode: the batch is gathered, or cut again
        COLUMN_THAT_GATHERS_ROWS(Part.ROWS, Part.FEATURES, "1 all-gather", "1 reduce-scatter"),
        ROW_THAT_CUTS_ROWS(Part.FEATURES, Part.ROWS, "1 reduce-scatter", "1 all-gather"),
        ROW_THAT_GATHERS_ROWS(Part.ROWS, Part.WHOLE, "1 all-reduce, 1 all-gather", "1 all-gather");

        private final Part input;
        private final Part output;
        private final String forward; // what a pass communicates
        private final String backward;

        Kind(Part input, Part output, String forward, String backward) {
            this.input = input;
            this.output = output;
            this.forward = forward;
            this.backward = backward;
        }

        /** What the mathematics needs, and nothing else; alone, there is nobody to talk to. */
        void assertCounts(LayerPass pass, int ranks) {
            String what = this + " on " + ranks + " ranks";
            Assert.assertEquals(pass.forwardCounts() + "", ranks == 1 ? "none" : forward, what);
            Assert.assertEquals(pass.backwardCounts() + "", ranks == 1 ? "none" : backward, what);
        }

        boolean isColumn() {
            return ordinal() < 2 || this == COLUMN_THAT_GATHERS_ROWS;
        }

        AbstractParallelLinear create(long units, boolean bias) {
            return isColumn()
                    ? newColumn(units)
                            .optBias(bias)
                            .optGatherOutput(output == Part.WHOLE)
                            .optBatchShardedInput(input == Part.ROWS)
                            .build()
                    : newRow(units)
                            .optBias(bias)
                            .optInputIsParallel(input == Part.FEATURES)
                            .optBatchShardedInput(input == Part.ROWS)
                            .optBatchShardedOutput(output == Part.ROWS)
                            .build();
        }

        LayerPass run(int ranks, AbstractParallelLinear layer, NDArray input, NDArray gradient) {
            boolean mixed = this.input == Part.ROWS || output == Part.ROWS;
            ParallelMode mode = mixed ? ParallelMode.MIXED : ParallelMode.TENSOR;
            return LayerPass.run(mode, ranks, layer, input, gradient, this.input, output);
        }
    }

    private static final List<Kind> OF_TENSOR_MODE =
            List.of(Kind.COLUMN, Kind.GATHERED, Kind.ROW, Kind.ROW_OF_WHOLE_INPUTS);

    private static Object[][] cases(Kind... kinds) {
        List<Object[]> cases = new ArrayList<>();
        for (Kind kind : kinds) {
            for (int ranks = 1; ranks <= 4; ranks++) {
                cases.add(new Object[] {kind, ranks});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @DataProvider
    public Object[][] ofTensorMode() {
        return cases(OF_TENSOR_MODE.toArray(new Kind[0]));
    }

    @Test(dataProvider = "ofTensorMode", timeOut = 60_000)
    public void everyRankHasItsPartOfTheGoldenCase(Kind kind, int ranks) {
        everyRankHasItsPart(kind, ranks, DataType.FLOAT32);
        everyRankHasItsPart(kind, ranks, DataType.FLOAT16);
    }

    private void everyRankHasItsPart(Kind kind, int ranks, DataType type) {
        LayerPass pass = golden(kind, ranks, type);
        NDList expected =
                kind.isColumn()
                        ? new NDList(
                                array(2, 6, 16, 26, 36, 15, 52, 89, 126),
                                array(2, 60, 70, 80, 132, 158, 184),
                                array(4, 15, 21, 27, 18, 26, 34, 21, 31, 41, 24, 36, 48),
                                manager.create(new float[] {6, 8, 10, 12}))
                        : new NDList(
                                array(2, 15, 40, 65, 39, 128, 217),
                                array(2, 32, 38, 44, 50, 68, 83, 98, 113),
                                array(3, 16, 21, 26, 31, 20, 27, 34, 41, 24, 33, 42, 51),
                                manager.create(new float[] {5, 7, 9}));
        pass.assertDense(expected, kind.input, kind.output, 0);
        kind.assertCounts(pass, ranks);
        for (int rank = 0; rank < ranks; rank++) {
            Assert.assertEquals(pass.output(rank).getDataType(), type);
        }
        Assert.assertEquals(pass.isOutputSharded(), kind == Kind.COLUMN && ranks > 1);
    }

    private NDArray array(int rows, float... values) {
        return manager.create(values, new Shape(rows, values.length / rows));
    }

    /** The weight is 0, 1, .. 11, the bias 1, 2, .., the input 0, 1, .., its gradient 1, 2, .. */
    private LayerPass golden(Kind kind, int ranks, DataType type) {
        int units = kind.isColumn() ? 4 : 3;
        Shape input = new Shape(2, 12 / units);
        AbstractParallelLinear layer =
                Layers.initialize(
                        kind.create(units, true),
                        manager,
                        type,
                        input,
                        Layers.count(0, 12),
                        Layers.count(1, units));
        return kind.run(
                ranks,
                layer,
                manager.create(Layers.count(0, (int) input.size()), input).toType(type, false),
                array(2, Layers.count(1, 2 * units)).toType(type, false));
    }

    @DataProvider
    public Object[][] partial() {
        return new Object[][] {
            {Kind.COLUMN, new float[][] {{6, 9, 12, 18, 29, 40}, {54, 61, 68, 114, 129, 144}}},
            {Kind.ROW, new float[][] {{1, 5, 9, 5, 41, 77}, {13, 33, 53, 33, 85, 137}}}
        };
    }

    /** What the all-reduce adds up: gradients of the input backward, or outputs forward. */
    @Test(dataProvider = "partial", timeOut = 60_000)
    public void partsOfTwoRanksAddUp(Kind kind, float[][] expected) {
        LayerPass pass = golden(kind, 2, DataType.FLOAT32);
        NDArray whole = array(2, Layers.count(kind.isColumn() ? 1 : 0, 8));
        for (int rank = 0; rank < 2; rank++) {
            NDArray own = Part.FEATURES.of(whole, rank, 2);
            NDArray weight = pass.value(rank, "weight");
            ArrayAssert.assertExact(
                    own.dot(kind.isColumn() ? weight : weight.transpose()),
                    expected[rank],
                    new Shape(2, 3),
                    "part of rank " + rank);
        }
    }

    @DataProvider
    public Object[][] sizes() {
        return cases(Kind.COLUMN, Kind.ROW);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void threeAxesAreTwoFlattened(Kind kind, int ranks) {
        NDArray input = manager.randomNormal(new Shape(3, 5, 7));
        NDArray gradient = manager.randomNormal(new Shape(3, 5, 10));
        AbstractParallelLinear layer = random(kind, 10, 7, true);
        LayerPass deep = kind.run(ranks, layer, input, gradient);
        LayerPass flat = kind.run(ranks, layer, input.reshape(15, 7), gradient.reshape(15, 10));
        for (int rank = 0; rank < ranks; rank++) {
            Assert.assertEquals(
                    deep.output(rank).getShape(), kind.output.of(gradient, rank, ranks).getShape());
            Assert.assertEquals(
                    deep.inputGradient(rank).getShape(),
                    kind.input.of(input, rank, ranks).getShape());
            // the same products in the same order: the same bits
            assertSame(deep.output(rank), flat.output(rank));
            assertSame(deep.inputGradient(rank), flat.inputGradient(rank));
            assertSame(deep.gradient(rank, "weight"), flat.gradient(rank, "weight"));
            long own = deep.output(rank).getShape().get(2);
            Assert.assertEquals(deep.gradient(rank, "bias").getShape(), new Shape(own));
            if (kind == Kind.ROW) {
                assertSame(deep.gradient(rank, "bias"), flat.gradient(rank, "bias"));
            }
            ArrayAssert.assertClose(
                    deep.gradient(rank, "bias"),
                    flat.gradient(rank, "bias"),
                    TOLERANCE, // summed over two axes instead of one
                    "bias gradient");
        }
    }

    private static void assertSame(NDArray actual, NDArray expected) {
        ArrayAssert.assertBitEqual(
                ArrayAssert.floats(actual), ArrayAssert.floats(expected), "three axes");
    }

    @DataProvider
    public Object[][] kinds() {
        return OF_TENSOR_MODE.stream().map(kind -> new Object[] {kind}).toArray(Object[][]::new);
    }

    /** 129 output features, or input features, are cut. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void unevenLayersAreTheDenseLayer(Kind kind) {
        long[][] lengths = {{65, 64}, {43, 43, 43}, {33, 32, 32, 32}};
        for (long[] ofRanks : lengths) {
            unevenLayersAreTheDenseLayer(kind, ofRanks);
        }
    }

    private void unevenLayersAreTheDenseLayer(Kind kind, long[] lengths) {
        int units = kind.isColumn() ? 129 : 17;
        int features = kind.isColumn() ? 17 : 129;
        for (boolean bias : new boolean[] {true, false}) {
            AbstractParallelLinear layer = random(kind, units, features, bias);
            NDArray input = manager.randomNormal(new Shape(6, features));
            NDArray gradient = manager.randomNormal(new Shape(6, units));
            LayerPass pass = kind.run(lengths.length, layer, input, gradient);
            NDList dense = Layers.dense(layer, input, gradient);
            pass.assertDense(dense, kind.input, kind.output, TOLERANCE);
            for (int rank = 0; rank < lengths.length; rank++) {
                long own = lengths[rank];
                Shape part = kind.isColumn() ? new Shape(own, 17) : new Shape(17, own);
                Assert.assertEquals(pass.gradient(rank, "weight").getShape(), part);
            }
            assertGathered(layer, pass, lengths.length);
        }
    }

    /** Parts that are put together are the parameters, to the last bit. */
    private void assertGathered(AbstractParallelLinear layer, LayerPass pass, int ranks) {
        for (var named : layer.getDirectParameters()) {
            NDArray whole = named.getValue().getArray();
            ShardingStrategy strategy = layer.getShardingStrategy(named.getValue());
            NDArray again = manager.zeros(whole.getShape());
            for (int rank = 0; rank < ranks; rank++) {
                strategy.gather(pass.value(rank, named.getKey()), again, rank, ranks);
            }
            ArrayAssert.assertBitEqual(again.toFloatArray(), whole.toFloatArray(), named.getKey());
        }
    }

    private AbstractParallelLinear random(Kind kind, int units, int features, boolean bias) {
        return Layers.initialize(
                kind.create(units, bias),
                manager,
                DataType.FLOAT32,
                new Shape(1, features),
                manager.randomNormal(new Shape(units * features)).toFloatArray(),
                manager.randomNormal(new Shape(units)).toFloatArray());
    }

    /** Each of eight ranks has one feature. */
    @Test(timeOut = 60_000)
    public void aFrozenWeightGetsNoGradientAndCommunicatesNone() {
        aFrozenWeightGetsNoGradientAndCommunicatesNone(Kind.COLUMN);
        aFrozenWeightGetsNoGradientAndCommunicatesNone(Kind.ROW_OF_WHOLE_INPUTS);
    }

    private void aFrozenWeightGetsNoGradientAndCommunicatesNone(Kind kind) {
        float[] ones = new float[64];
        Arrays.fill(ones, 1);
        AbstractParallelLinear layer =
                Layers.initialize(
                        kind.create(8, false),
                        manager,
                        DataType.FLOAT32,
                        new Shape(8, 8),
                        ones,
                        null);
        layer.freezeParameters(true);
        NDArray all = manager.ones(new Shape(8, 8));
        LayerPass pass = kind.run(8, layer, manager.eye(8), all);
        for (int rank = 0; rank < 8; rank++) {
            NDArray output = kind.output.of(all, rank, 8);
            ArrayAssert.assertExact(
                    pass.output(rank), output.toFloatArray(), output.getShape(), "output");
            ArrayAssert.assertExact(
                    pass.inputGradient(rank),
                    all.mul(8).toFloatArray(),
                    new Shape(8, 8),
                    "input gradient");
            Assert.assertFalse(pass.value(rank, "weight").hasGradient());
            Assert.assertNull(pass.gradient(rank, "weight"));
        }
        kind.assertCounts(pass, 8);
    }

    @DataProvider
    public Object[][] mixed() {
        return cases(
                Kind.COLUMN_THAT_GATHERS_ROWS, Kind.ROW_THAT_CUTS_ROWS, Kind.ROW_THAT_GATHERS_ROWS);
    }

    /** Four rows of integers: the parts of three ranks are uneven. */
    @Test(dataProvider = "mixed", timeOut = 60_000)
    public void aBatchIsGatheredOrCutAgainInMixedMode(Kind kind, int ranks) {
        AbstractParallelLinear layer = integers(kind);
        NDArray input = array(4, Layers.count(-8, 16));
        NDArray gradient = array(4, Layers.count(-9, 20));
        NDList dense = Layers.dense(layer, input, gradient);
        LayerPass pass = kind.run(ranks, layer, input, gradient);
        pass.assertDense(dense, kind.input, kind.output, 0);
        kind.assertCounts(pass, ranks);
    }

    @Test(timeOut = 60_000)
    public void inTheOtherModesThereIsNothingToGatherOrCut() {
        AbstractParallelLinear layer = integers(Kind.COLUMN_THAT_GATHERS_ROWS);
        NDArray input = array(4, Layers.count(-8, 16));
        NDArray gradient = array(4, Layers.count(-9, 20));
        LayerPass pass = Kind.COLUMN.run(2, layer, input, gradient);
        pass.assertDense(Layers.dense(layer, input, gradient), Part.WHOLE, Part.FEATURES, 0);
        Assert.assertEquals(pass.forwardCounts().total(), 0);
    }

    private AbstractParallelLinear integers(Kind kind) {
        return Layers.initialize(
                kind.create(5, true),
                manager,
                DataType.FLOAT32,
                new Shape(4, 4),
                Layers.count(-7, 20),
                Layers.count(1, 5));
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
