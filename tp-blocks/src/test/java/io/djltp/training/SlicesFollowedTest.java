package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.convolutional.Conv1d;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * A slice of the features of tokens, [rows, 3, 12/p], is followed to heads and to other axes: what
 * mixes features there is refused, what does not has the results of DJL's own trainer.
 */
public class SlicesFollowedTest {

    private static final int ROWS = 4;
    private static final int UNITS = 12;
    private static final int DIM = 2; // features of a head

    private static NDArray heads(NDArray x) {
        return x.reshape(x.getShape().get(0), x.getShape().get(1), -1, DIM);
    }

    private static UnaryOperator<NDArray> ofHeads(UnaryOperator<NDArray> function) {
        return x -> function.apply(heads(x)).reshape(x.getShape());
    }

    private static UnaryOperator<NDArray> ofColumns(UnaryOperator<NDArray> function) {
        return x -> function.apply(x.swapAxes(1, 2)).swapAxes(1, 2);
    }

    private static Network network(Supplier<Block> between) {
        return Network.of(
                cut ->
                        sequence(
                                reshape(-1, 3, 2),
                                first(cut, UNITS),
                                between.get(),
                                row(cut, 3),
                                reshape(-1, 9)),
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 9));
    }

    private static void add(List<Object[]> cases, String name, UnaryOperator<NDArray> function) {
        cases.add(new Object[] {name, function});
    }

    @DataProvider
    public Object[][] mixing() {
        List<Object[]> cases = new ArrayList<>();
        add(cases, "softmax over heads", ofHeads(x -> x.softmax(2)));
        add(cases, "sum over heads", ofHeads(x -> x.cumSum(2)));
        add(cases, "other order of heads", ofHeads(x -> x.flip(2)));
        add(cases, "mean over heads", ofHeads(x -> x.sub(x.mean(new int[] {2}, true))));
        add(cases, "largest of heads", ofHeads(x -> x.sub(x.max(new int[] {2}, true))));
        add(
                cases,
                "heads in a circle",
                ofHeads(x -> NDArrays.concat(new NDList(x.get(":,:,1:"), x.get(":,:,:1")), 2)));
        add(cases, "product over heads", ofHeads(x -> x.matMul(x.swapAxes(2, 3).matMul(x))));
        add(cases, "dim before heads", x -> heads(x).swapAxes(2, 3).reshape(x.getShape()));
        add(cases, "heads before tokens", x -> heads(x).swapAxes(1, 2).reshape(x.getShape()));
        add(cases, "softmax of columns", ofColumns(x -> x.softmax(1)));
        add(cases, "log softmax of columns", ofColumns(x -> x.logSoftmax(1)));
        add(cases, "sum of columns", ofColumns(x -> x.cumSum(1)));
        add(cases, "mean over heads of columns", ofColumns(SlicesFollowedTest::minusMeanOfHeads));
        add(
                cases,
                "softmax over heads of all tokens",
                x -> x.reshape(ROWS * 3, -1, DIM).softmax(1).reshape(x.getShape()));
        add(
                cases,
                "largest of heads, rows in two halves",
                ofHeads(
                        x ->
                                x.reshape(2, ROWS / 2, 3, -1, DIM)
                                        .max(new int[] {3}, true)
                                        .reshape(ROWS, 3, 1, DIM)
                                        .add(x)));
        add(
                cases,
                "product over heads of a feature",
                ofHeads(x -> x.matMul(x.swapAxes(2, 3)).softmax(3).matMul(x)));
        add(
                cases,
                "pool over features",
                x ->
                        x.getNDArrayInternal()
                                .maxPool(new Shape(3), new Shape(1), new Shape(1), false));
        add(cases, "an unknown operation", x -> x.rotate90(2, new int[] {1, 2}));
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "mixing", timeOut = 60_000)
    public void featuresThatAreMixedAreRefused(String name, UnaryOperator<NDArray> function) {
        network(() -> map(function))
                .assertRefused(TENSOR_2, "ColumnParallelLinear", "optGatherOutput(true)");
    }

    /** With two features a rank, each rank has one head: an axis of length 1. */
    @Test(dataProvider = "mixing", timeOut = 60_000)
    public void soAreThoseOfOneHeadARank(String name, UnaryOperator<NDArray> function) {
        network(() -> map(function))
                .assertRefused(
                        new TrainerKind(ParallelMode.TENSOR, UNITS / DIM),
                        false,
                        "ColumnParallelLinear",
                        "optGatherOutput(true)");
    }

    /** A product over the features of a slice is a summand of that over all of them. */
    @Test(timeOut = 60_000)
    public void productsOverASliceAreRefused() {
        List<UnaryOperator<NDArray>> products =
                List.of(
                        x -> x.batchMatMul(x.transpose(0, 2, 1).batchMatMul(x)),
                        x -> x.batchMatMul(x.transpose(0, 2, 1)).softmax(-1).batchMatMul(x));
        for (UnaryOperator<NDArray> product : products) {
            for (ParallelMode mode : List.of(ParallelMode.TENSOR, ParallelMode.MIXED)) {
                network(() -> map(product))
                        .assertRefused(new TrainerKind(mode, 2), "does not commute", "batchMatMul");
            }
        }
    }

    /** The length is that of the slice, the order is not. */
    @Test(timeOut = 60_000)
    public void featuresInAnotherOrderAreNamedSo() {
        network(
                        () ->
                                map(
                                        x ->
                                                x.reshape(-1, 3, x.getShape().get(2) / 2, 2)
                                                        .swapAxes(2, 3)
                                                        .reshape(x.getShape())))
                .assertRefused(
                        TENSOR_2,
                        "ColumnParallelLinear",
                        "no longer the last axis, in their order",
                        "swapAxes",
                        "optGatherOutput(true)");
    }

    @Test(timeOut = 60_000)
    public void layersThatMixFeaturesAreRefused() {
        TrainerKind kind = TENSOR_2;
        Network conv =
                network(
                        () ->
                                Conv1d.builder()
                                        .setKernelShape(new Shape(3))
                                        .optPadding(new Shape(1))
                                        .setFilters(3)
                                        .build());
        conv.assertRefused(kind, false, "convolution", "optGatherOutput(true)");
        Network norm = network(() -> map(SlicesFollowedTest::batchNorm));
        norm.assertRefused(kind, false, "batchNorm", "optGatherOutput(true)");
    }

    /** A channel of a batch normalization for each token. */
    private static NDArray batchNorm(NDArray x) {
        NDArray ones = x.getManager().ones(new Shape(3));
        return x.getNDArrayInternal()
                .batchNorm(x, ones.mul(0), ones.mul(1), ones, ones, 1, 0.9f, 1e-5f, true)
                .head();
    }

    @DataProvider
    public Object[][] exact() {
        List<Object[]> cases = new ArrayList<>();
        add(cases, "softmax of a head", ofHeads(x -> x.mul(x.softmax(3))));
        add(cases, "norm of a head", ofHeads(x -> x.sub(x.mean(new int[] {3}, true))));
        add(cases, "softmax over tokens", x -> x.mul(x.softmax(1)));
        add(cases, "softmax over tokens of columns", ofColumns(x -> x.mul(x.softmax(2))));
        add(cases, "all tokens in one row", x -> x.reshape(ROWS, -1).tanh().reshape(x.getShape()));
        add(
                cases,
                "pool over tokens",
                ofColumns(
                        x ->
                                x.getNDArrayInternal()
                                        .avgPool(
                                                new Shape(3),
                                                new Shape(1),
                                                new Shape(1),
                                                false,
                                                true)));
        add(cases, "attention", SlicesFollowedTest::attention);
        add(
                cases,
                "softmax of a head of columns",
                ofColumns(x -> x.reshape(ROWS, -1, DIM, 3).softmax(2).reshape(x.getShape())));
        return cases.toArray(new Object[0][]);
    }

    /** Columns are [rows, features, tokens], with heads [rows, heads, dim, tokens]. */
    private static NDArray minusMeanOfHeads(NDArray columns) {
        NDArray heads = columns.reshape(ROWS, -1, DIM, 3);
        return heads.sub(heads.mean(new int[] {1}, true)).reshape(columns.getShape());
    }

    /** The heads are axes of the batch of two products; the rows are one with them. */
    private static NDArray attention(NDArray x) {
        NDArray heads = heads(x).swapAxes(1, 2); // [rows, heads, tokens, dim]
        NDArray weights = heads.matMul(heads.tanh().swapAxes(2, 3)).softmax(-1);
        return weights.matMul(heads).swapAxes(1, 2).reshape(x.getShape());
    }

    @Test(dataProvider = "exact", timeOut = 60_000)
    public void whatKeepsFeaturesApartIsThatOfPlainDjl(
            String name, UnaryOperator<NDArray> function) {
        network(() -> map(function))
                .assertEqual(TENSOR_2, new TrainerKind(ParallelMode.TENSOR, UNITS / DIM));
    }

    /** Three queries share keys and values. */
    @Test(timeOut = 60_000)
    public void groupedHeadsAreThoseOfPlainDjl() {
        grouped(1).assertEqual(TENSOR_2);
    }

    /** Repeated one after another, the keys would be those of other queries. */
    @Test(timeOut = 60_000)
    public void keysInAnotherOrderAreRefused() {
        grouped(0).assertRefused(TENSOR_2, "optGatherOutput(true)");
    }

    private static Network grouped(int inner) {
        return Network.of(
                cut ->
                        new GraphBlock(
                                        new Shape(9),
                                        (call, in) -> {
                                            NDArray x = in.head().reshape(-1, 3, 2);
                                            NDArray q = heads(call.call("q", x)).swapAxes(1, 2);
                                            NDArray k = heads(call.call("k", x)).swapAxes(1, 2);
                                            Shape all = k.getShape(); // [rows, groups, tokens, dim]
                                            k = k.expandDims(1 + inner);
                                            Shape more = k.getShape().addAll(new Shape());
                                            long[] wide = more.getShape();
                                            wide[1 + inner] = 3;
                                            k = k.broadcast(new Shape(wide));
                                            k = k.reshape(all.get(0), -1, all.get(2), all.get(3));
                                            NDArray y = q.matMul(k.swapAxes(2, 3)).softmax(-1);
                                            y = y.matMul(k).swapAxes(1, 2);
                                            y = y.reshape(all.get(0), all.get(2), -1);
                                            return new NDList(call.call("row", y).reshape(-1, 9));
                                        })
                                .add("q", first(cut, UNITS), 3, 2)
                                .add("k", first(cut, UNITS / 3), 3, 2)
                                .add("row", row(cut, 3), 3, UNITS),
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 9));
    }
}
