package io.djltp.internal.layout;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.BinaryOperator;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * What a network does to sharded features between two layers: with shapes of the whole it is what
 * DJL computes on one device, or it throws where it is called.
 */
public class PlacedArrayTest {

    private static final int ROWS = 6;
    private static final int UNITS = 12;

    private interface Operation extends UnaryOperator<NDArray> {}

    private static Object[] of(String name, Operation operation) {
        return new Object[] {name, operation};
    }

    private static Network network(Operation operation) {
        return Network.of(
                cut -> sequence(linear(5), first(cut, UNITS), map(operation), row(cut, 3)),
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 3));
    }

    /** Operations of [rows, width], whose columns are sharded. */
    @DataProvider
    public Object[][] ofTheWidth() {
        return new Object[][] {
            of("a number", x -> x.mul((float) (1 / Math.sqrt(x.getShape().get(1))))),
            of("the size of an axis", x -> x.div(x.size(1))),
            of("a constant of all features", x -> x.mul(x.getManager().arange(x.size(1)).div(9f))),
            of("a constant first", x -> x.getManager().arange(x.size(1)).div(9f).mul(x)),
            of("a constant of the shape", x -> x.add(x.getManager().ones(x.getShape())).tanh()),
            of("zeros like it", x -> x.zerosLike().add(x).mul(x.onesLike())),
            of("groups of a number", x -> groups(x, x.reshape(x.size(0), 4, -1).softmax(2))),
            of("groups of a size", x -> groups(x, x.reshape(x.size(0), -1, 3).mul(2f).tanh())),
            of(
                    "a constant of groups",
                    x -> groups(x, x.reshape(-1, 4, 3).mul(groupNumbers(x)).tanh())),
            of("all of them by an index", x -> x.get(":, :" + UNITS).tanh()),
            of("broadcast", x -> x.expandDims(1).broadcast(x.size(0), 2, UNITS).max(new int[] {1})),
            of("a mask", x -> x.mul(x.gt(0))),
            of("the other way round and back", x -> x.transpose().tanh().transpose()),
            of("stacked", x -> x.stack(x.tanh(), 1).sum(new int[] {1})),
            of(
                    "a matrix of each group",
                    x -> groups(x, x.reshape(-1, 4, 1, 3).matMul(matrices(x.getManager())))),
            of("gather of all features by some", PlacedArrayTest::gathered),
            of("scatter of all features by some", PlacedArrayTest::scattered),
            of("a sum of three", x -> NDArrays.add(x, x.tanh(), x.mul(2)).tanh()),
            of("in place", x -> x.mul(1f).addi(x.getManager().arange(x.size(1)).div(9f)).tanh()),
        };
    }

    private static NDArray matrices(NDManager manager) {
        return manager.arange(36f).reshape(4, 3, 3).div(40f);
    }

    /** Two rows of all features, which all ranks have. */
    private static NDArray table(NDArray x) {
        return x.getManager().arange(2f * UNITS).reshape(2, UNITS).div(20f);
    }

    private static NDArray chosen(NDArray x) {
        return x.gt(0).toType(DataType.INT64, false);
    }

    private static NDArray gathered(NDArray x) {
        return table(x).gather(chosen(x), 0).mul(x);
    }

    private static NDArray scattered(NDArray x) {
        NDArray two = x.expandDims(1).broadcast(x.size(0), 2, UNITS).mul(0);
        NDArray numbers = x.getManager().arange((float) UNITS).div(9f).reshape(1, 1, UNITS);
        NDArray each = numbers.broadcast(x.size(0), 1, UNITS);
        return two.scatter(chosen(x).expandDims(1), each, 1).get(":, 1").mul(x);
    }

    private static NDArray groupNumbers(NDArray x) {
        return x.getManager().arange(4f).add(1).reshape(1, 4, 1);
    }

    private static NDArray groups(NDArray x, NDArray groups) {
        return groups.reshape(x.getShape());
    }

    @Test(dataProvider = "ofTheWidth", timeOut = 60_000)
    public void blocksSeeTheWhole(String name, Operation operation) {
        network(operation).assertEqual(TENSOR_2, TENSOR_4, MIXED_2, MESH_2X2);
    }

    /** Twelve features in four groups: three ranks have 4 each, which are no whole groups. */
    @Test(timeOut = 60_000)
    public void groupsThatRanksDivide() {
        network(x -> groups(x, x.reshape(x.size(0), 4, -1).tanh()))
                .assertRefused(
                        TENSOR_3, "ColumnParallelLinear", "reshape", "optGatherOutput(true)");
        network(x -> groups(x, x.reshape(x.size(0), -1, 2).tanh())).assertEqual(TENSOR_3);
    }

    /** What a graph does not show. */
    @DataProvider
    public Object[][] withoutGradient() {
        return new Object[][] {
            of("softmax", x -> x.mul(x.stopGradient().softmax(1))),
            of("argMax", x -> x.mul(x.argMax(1).reshape(-1, 1))),
            of("cumSum", x -> x.mul(x.gt(0).cumSum(1))),
            of("max", x -> x.mul(x.gt(0).max(new int[] {1}, true))),
            of("set", PlacedArrayTest::withoutTheFirst),
            of("toFloatArray", x -> x.mul(x.toFloatArray()[0])),
            of("get", x -> x.mul(numbers(x).get(new NDIndex("{}", chosen(x))).sum())),
            of("get", x -> x.mul(numbers(x).get("{}", chosen(x)).sum())),
            of("percentile", x -> x.mul(x.percentile(50, new int[] {1}).reshape(-1, 1))),
            of("sum", x -> x.mul(x.getResourceNDArrays().get(0).sum(new int[] {1}, true))),
            of("getFloat", x -> x.mul(x.getFloat(0, 0))),
        };
    }

    private static NDArray numbers(NDArray x) {
        return x.getManager().arange(2f);
    }

    private static NDArray withoutTheFirst(NDArray x) {
        NDArray y = x.duplicate();
        y.set(new NDIndex(":, 0"), 0);
        return x.mul(y.gt(0));
    }

    @Test(dataProvider = "withoutGradient", timeOut = 60_000)
    public void whatAGraphDoesNotShowThrows(String name, Operation operation) {
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, MIXED_2, MESH_2X2}) {
            network(operation)
                    .assertRefused(kind, "ColumnParallelLinear", name, "optGatherOutput(true)");
        }
    }

    /** A rank's gradient of a replicated parameter that meets a shard is a summand. */
    @Test(timeOut = 60_000)
    public void aParameterOfAllFeatures() {
        Network net =
                Network.of(
                        cut ->
                                new GraphBlock(
                                                new Shape(3),
                                                (call, in) -> {
                                                    NDArray x = call.call("column", in.head());
                                                    NDArray w = call.value("scale");
                                                    x = w.add(1).mul(x).add(call.value("shift"));
                                                    return new NDList(call.call("row", x.tanh()));
                                                })
                                        .add("column", first(cut, 8), 6)
                                        .add("row", row(cut, 3), 8)
                                        .add("scale", new Shape(1, 8))
                                        .add("shift", new Shape(1, 8)),
                        HalfSquareLoss::new,
                        Network.regression(ROWS, 6, 3));
        net.assertEqual(TENSOR_2, TENSOR_3, MIXED_2, MESH_2X2, MESH_3X2);
    }

    /** A block that has a shard of a parameter by its name alone. */
    private static Network sharing(BinaryOperator<NDArray> function) {
        return Network.of(
                cut -> {
                    Block column = column(cut, 8);
                    return new GraphBlock(
                                    new Shape(3),
                                    (call, in) -> {
                                        NDArray x = call.call("column", in.head());
                                        NDArray w = call.value("shared");
                                        NDArray y = function.apply(in.head(), w);
                                        return new NDList(
                                                call.call("row", x.mul(y.mul(0.3f)).tanh()));
                                    })
                            .add("column", column, 6)
                            .add("row", row(cut, 3), 8)
                            .tie("shared", column.getDirectParameters().get("weight"));
                },
                HalfSquareLoss::new,
                Network.regression(ROWS, 6, 3));
    }

    @Test(timeOut = 60_000)
    public void aShardOfAParameter() {
        sharing((x, w) -> x.matMul(w.transpose()).tanh()).assertEqual(TENSOR_2, TENSOR_3, MESH_2X2);
        sharing((x, w) -> w.square().sum(new int[] {1})).assertEqual(TENSOR_2, TENSOR_3, MESH_2X2);
        sharing((x, w) -> x.matMul(w.transpose().softmax(0))).assertEqual(TENSOR_2, MESH_2X2);
        for (String name : List.of("softmax", "mean", "cumSum", "norm")) {
            BinaryOperator<NDArray> function =
                    (x, w) ->
                            switch (name) {
                                case "softmax" -> w.softmax(0).sum(new int[] {1});
                                case "mean" -> w.mean();
                                case "cumSum" -> w.cumSum(0).sum(new int[] {1});
                                default -> w.norm();
                            };
            sharing(function).assertRefused(TENSOR_2, "Parameter", "(8, 6)", name);
        }
    }

    /** Rows that are made of a parameter are rows of the batch for a layer. */
    @Test(timeOut = 60_000)
    public void rowsOfAParameter() {
        BinaryOperator<NDArray> broadcast = (w, x) -> w.get("0:1").broadcast(x.size(0), 6);
        BinaryOperator<NDArray> byIndex =
                (w, x) -> {
                    NDArray ids = x.get(":, 0").gt(0).toType(DataType.INT64, false);
                    return w.get(new NDIndex("{}", ids));
                };
        for (BinaryOperator<NDArray> rows : List.of(broadcast, byIndex)) {
            Network.of(
                            cut ->
                                    new GraphBlock(
                                                    new Shape(3),
                                                    (call, in) -> {
                                                        NDArray w = call.value("table");
                                                        NDArray x = rows.apply(w, in.head());
                                                        x = call.call("column", x).tanh();
                                                        return new NDList(call.call("row", x));
                                                    })
                                            .add("column", first(cut, 8), 6)
                                            .add("row", row(cut, 3), 8)
                                            .add("table", new Shape(2, 6)),
                            HalfSquareLoss::new,
                            Network.regression(ROWS, 6, 3))
                    .assertEqual(TENSOR_2, TENSOR_3, DATA_2, MIXED_2, MESH_2X2);
        }
    }

    /** What a layer has stacked, by its parts. */
    @Test(timeOut = 60_000)
    public void partsOfWhatIsStacked() {
        for (UnaryOperator<NDArray> taking :
                List.<UnaryOperator<NDArray>>of(
                        x -> x.split(2, 1).get(0).tanh().mul(x.split(2, 1).get(1)),
                        x -> x.split(new long[] {8}, 1).get(0).mul(x.get(":, 8:")),
                        PlacedArrayTest::setFirstHalf)) {
            Network.of(
                            cut -> sequence(linear(5), gateUp(cut), map(taking), row(cut, 3)),
                            HalfSquareLoss::new,
                            Network.regression(ROWS, 6, 3))
                    .assertEqual(TENSOR_2, TENSOR_3, MIXED_2, MESH_2X2);
        }
    }

    private static Block gateUp(boolean cut) {
        ColumnParallelLinear.Builder builder =
                newColumn(16)
                        .optShardingStrategy(ShardingStrategy.gateUp())
                        .optBatchShardedInput(true);
        return cut ? builder.build() : linear(16);
    }

    private static NDArray setFirstHalf(NDArray x) {
        NDArray all = x.mul(1f);
        all.set(new NDIndex(":, :8"), 0.3f);
        assertEquals(all.size(1), 16);
        return all.get(":, 8:").tanh();
    }

    /** A norm of everything, of a rank's rows too. */
    @Test(timeOut = 60_000)
    public void aNormOfEverything() {
        network(x -> x.div(x.norm().add(1)))
                .assertRefused(TENSOR_2, "norm", "optGatherOutput(true)");
        Network.of(
                        cut -> sequence(linear(5), map(x -> x.div(x.norm().add(1))), linear(3)),
                        HalfSquareLoss::new,
                        Network.regression(ROWS, 6, 3))
                .assertEqual(TENSOR_2);
    }

    /** An array of another manager cannot be the first operand. */
    @Test(timeOut = 60_000)
    public void anArrayOfAnotherManager() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray own = manager.ones(new Shape(1, 5));
            Network net =
                    Network.of(
                            cut -> sequence(linear(5), map(own::mul), column(cut, 4), row(cut, 3)),
                            HalfSquareLoss::new,
                            Network.regression(ROWS, 6, 3));
            Refusals.throwsState(() -> net.assertEqual(TENSOR_2), "be the first operand");
        }
    }

    /**
     * In MIXED_2 mode, which ranks compute alike follows from the array, not from the last layer.
     */
    @Test(timeOut = 60_000)
    public void randomNumbersForTheArrayThatTheyAreDrawnFor() {
        Supplier<Block> afterTheGather = () -> branches("whole", "rows");
        Refusals.expect(
                UnsupportedOperationException.class,
                () -> step(afterTheGather.get()),
                "ParallelDropout");
        step(branches("rows", "whole"));
    }

    /** One branch leaves all rows on each rank, one the rank's; the first of the two drops. */
    private static Block branches(String dropped, String other) {
        return new GraphBlock(
                        new Shape(3),
                        (call, in) -> {
                            NDArray x = call.call("in", in.head());
                            NDArray own = call.call(dropped, call.call(dropped + "Column", x));
                            NDArray rest = call.call(other, call.call(other + "Column", x));
                            own = Dropout.dropout(own, 0.5f, true).singletonOrThrow();
                            boolean whole = dropped.equals("whole");
                            NDArray all = whole ? own : rest;
                            NDArray rows = whole ? rest : own;
                            return new NDList(call.call("out", all), call.call("outOfRows", rows));
                        })
                .add("in", linear(4), 6)
                .add("wholeColumn", gathering(6), 4)
                .add("whole", row(true, 4), 6)
                .add("rowsColumn", gathering(6), 4)
                .add(
                        "rows",
                        RowParallelLinear.builder().setUnits(4).optBatchShardedOutput(true).build(),
                        6)
                .add("out", linear(3), 4)
                .add("outOfRows", linear(3), 4);
    }

    private static Block gathering(long units) {
        return ColumnParallelLinear.builder().setUnits(units).optBatchShardedInput(true).build();
    }

    private static void step(Block block) {
        TrainingRun.of(
                MIXED_2,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, 6),
                (trainer, manager, numbers) ->
                        trainer.forward(new NDList(random(manager, 1, ROWS, 6))));
    }
}
