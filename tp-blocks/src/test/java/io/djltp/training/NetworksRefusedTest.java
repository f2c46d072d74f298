package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.Network.batches;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.testing.TrainingRun.steps;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.convolutional.Conv1d;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.L2WeightDecay;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.translate.NoopTranslator;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * Networks that ranks cannot compute throw before the first step, and before an evaluation tells a
 * number, with an error that names the layer or the parameter and the remedy; the weights stay as
 * they were.
 */
public class NetworksRefusedTest extends RecordedTest {

    private static final TrainerKind SIX = new TrainerKind(ParallelMode.TENSOR, 6);
    private static final TrainerKind[] ALL = {TENSOR_2, DATA_2, MIXED_2, MESH_2X2};
    private static final TrainerKind[] ROWS_CUT = {DATA_2, MESH_2X2};
    private static final TrainerKind[] SHARING = {TENSOR_2, TENSOR_3, DATA_2, MIXED_3, MESH_2X2};
    private static final String HALVES = "[0,4) | [4,8) of 8";
    private static final String EVENS = "[0,2) [4,6) | [2,4) [6,8) of 8";
    private static final Cut EVENS_AND_ODDS =
            Cut.of(
                    8,
                    2,
                    rank -> List.of(new ShardRange(rank * 2, 2), new ShardRange(4 + rank * 2, 2)));

    private static final List<Row> TABLE = new ArrayList<>();
    private static final List<Network> REORDERED = new ArrayList<>();

    /** A network, the trainers that refuse it, and what the error has to name. */
    private static final class Row {
        private final String name;
        private final Network network;
        private TrainerKind[] kinds = {TENSOR_2, MIXED_2, MESH_2X2};
        private boolean evaluated = true; // also when it is evaluated before it is trained
        private String says = "ColumnParallelLinear .. optGatherOutput(true)";

        Row(String name, Network network) {
            this.name = name;
            this.network = network;
            TABLE.add(this);
        }

        Row on(TrainerKind... some) {
            kinds = some;
            return this;
        }

        /** What the error says, with " .. " for what is between. */
        Row says(String text) {
            says = text;
            return this;
        }

        Row trained() {
            evaluated = false;
            return this;
        }

        @Override
        public String toString() {
            return name;
        }
    }

    private static Row numbers(String name, Function<Boolean, Block> block) {
        return net(name, block, HalfSquareLoss::new, "6x6", "6x3");
    }

    private static Row classes(String name, Function<Boolean, Block> block) {
        return net(name, block, VocabParallelCrossEntropyLoss::new, "6x6", "6:6");
    }

    private static Row net(
            String name,
            Function<Boolean, Block> block,
            Supplier<Loss> loss,
            String data,
            String labels) {
        return new Row(name, Network.of(block, loss, batches(data, labels)));
    }

    @DataProvider
    public Object[][] rows() {
        return TrainerKind.rows(TABLE);
    }

    @Test(dataProvider = "rows", timeOut = 60_000)
    public void isRefused(Row row) {
        for (TrainerKind kind : row.kinds) {
            row.network.assertRefused(kind, false, row.says);
            if (row.evaluated) {
                row.network.assertRefused(kind, true, row.says);
            }
        }
    }

    // what may not be done to the slice of 4 of 8 features
    static {
        ofSlice("a linear layer", () -> linear(3));
        ofSlice("a layer normalization", () -> sequence(LayerNorm.builder().build(), row(3)));
        ofSlice("a batch normalization", () -> sequence(BatchNorm.builder().build(), row(3)));
        ofSlice("a softmax", () -> sequence(map(x -> x.softmax(-1)), row(3)));
        ofSlice("a frozen softmax", () -> frozen(sequence(map(x -> x.softmax(-1)), row(3))));
        ofSlice("a half", () -> map(x -> x.get(":, :3")));
        ofSlice("a gate of two halves", () -> map(x -> x.get(":, ::2").mul(x.get(":, 1::2"))));
        ofSlice("a sum", () -> sequence(map(x -> x.sum(new int[] {-1}, true)), linear(3)));
        ofSlice("a flip", () -> sequence(map(x -> x.flip(1)), row(3)));
        ofSlice("three heads", () -> sequence(reshape(-1, 8, 1, 1), reshape(-1, 2, 4), row(3)));
        // nothing below the softmax is trained: the graph of training does not know it
        numbers(
                        "a softmax of a frozen column",
                        cut ->
                                sequence(
                                        frozen(first(cut, 8)),
                                        map(x -> x.softmax(-1)),
                                        row(cut, 3)))
                .says("ColumnParallelLinear .. softmax .. optGatherOutput(true)");
        for (Block flat : new Block[] {reshape(-1, 12), flatten()}) {
            numbers(
                    "a flattened sequence before a row",
                    cut -> sequence(reshape(-1, 3, 2), first(cut, 4), flat, row(cut, 3)));
        }
        classes(
                "logits that are flattened",
                cut -> sequence(linear(6), head(6), map(NDArray::flatten)));
    }

    private static void ofSlice(String name, Supplier<Block> tail) {
        numbers(name, cut -> sequence(linear(6), tanh(), first(cut, 8), tail.get()));
        numbers(name, cut -> sequence(tanh(), first(cut, 8), tail.get()));
    }

    // blocks in the wrong place, and parameters that are not asked for
    static {
        // what layers over ranks have computed is the same on all ranks, and so is its gradient
        net(
                        "a slice times a gate of another pair of layers",
                        cut ->
                                NetworksEqualDjlTest.gated(
                                        cut, sequence(column(cut, 6), row(cut, 1))),
                        HalfSquareLoss::new,
                        "6x5",
                        "6x3")
                .on(TENSOR_2, MESH_2X2)
                .says("of the other a rank has the whole .. optGatherOutput .. RowParallelLinear");
        // with as many units as inputs the layer would be the identity
        notLast(() -> linear(6));
        notLast(() -> tanh());
        notLast(() -> map(x -> x.add(0)));
        notLast(() -> map(x -> x.reshape(x.getShape())));
        notLast(() -> head(6));
        classes(
                        "a weight tied to a fused head",
                        cut -> {
                            Block head = fused(6);
                            return graph(6, NetworksRefusedTest::timesWeight)
                                    .add("head", head, 6)
                                    .tie("w", head.getDirectParameters().get("weight"));
                        })
                .on(TENSOR_1)
                .trained()
                .says("shared .. optFusedLoss");
        net(
                        "a block before and after the gather",
                        cut -> {
                            Block shared = linear(6);
                            return sequence(shared, first(cut, 8), tanh(), row(cut, 6), shared);
                        },
                        HalfSquareLoss::new,
                        "6x6",
                        "6x6")
                .on(MIXED_2)
                .trained()
                .says("Linear_ .. Give the two uses a block each");
        // over the axis tensor, the gradient of the first use is whole, that of the second is not
        numbers(
                        "a scale of the whole and of a slice",
                        cut ->
                                columnAndRow(cut, NetworksRefusedTest::scaledTwice)
                                        .add("scale", new Shape(1, 1)))
                .on(TENSOR_2, MESH_2X2)
                .trained()
                .says("scale .. Give the two uses a block each");
        for (String rows : List.of("2x6", "6x6")) { // one row of a rank would be broadcast
            joins(rows, () -> linear(6));
            joins(rows, () -> tanh());
        }
        numbers(
                        "one of two branches gathers",
                        cut -> {
                            Block gathers = sequence(first(cut, 8), tanh(), row(cut, 3));
                            Block other = sequence(column(cut, 8), tanh(), row(cut, 3));
                            return sequence(linear(6), sum(gathers, other));
                        })
                .on(MIXED_2)
                .says("optBatchShardedInput(true)");
        net(
                        "a layer before the one that gathers",
                        cut -> sequence(column(4), head(7)),
                        VocabParallelCrossEntropyLoss::new,
                        "6x5",
                        "6:7")
                .on(MIXED_2)
                .trained()
                .says("a rank's rows of the batch, (3, 5) .. optBatchShardedInput(true)");
        numbers(
                        "a block that does not ask its store",
                        cut ->
                                columnAndRow(cut, NetworksRefusedTest::ofArray)
                                        .add("w", new Shape(1, 6)))
                .on(ALL)
                .trained()
                .says("array of parameter .. ask the parameter store");
        // tokens as rows of their own before the head: their number is not that of the batch
        numbers(
                        "tokens flattened before the batch is gathered",
                        cut -> sequence(reshape(-1, 2), first(cut, 8), row(cut, 3)))
                .on(MIXED_2)
                .says(
                        "ColumnParallelLinear with a weight of (8, 2) .. 3 of 6 .. (9, 2) .. "
                                + "[rows, tokens, features] .. TENSOR mode");
    }

    private static void notLast(Supplier<Block> tail) {
        classes("a fused layer that is not last", cut -> sequence(fused(6), tail.get()))
                .on(TENSOR_2, MIXED_2, TENSOR_1)
                .says("optFusedLoss");
    }

    private static void joins(String rows, Supplier<Block> body) {
        net(
                        "a branch that joins behind the gather",
                        cut -> {
                            Block layers = sequence(first(cut, 8), row(cut, 6));
                            return sequence(body.get(), sum(layers, tanh()));
                        },
                        HalfSquareLoss::new,
                        rows,
                        rows)
                .on(MIXED_2)
                .says("optBatchShardedInput(true)");
    }

    private static NDArray timesWeight(GraphBlock.Call call, NDArray x) {
        return call.call("head", x.matMul(call.value("w")).tanh());
    }

    private static NDArray scaledTwice(GraphBlock.Call call, NDArray x) {
        NDArray scale = call.value("scale");
        return call.call("row", call.call("column", x.mul(scale)).mul(scale).tanh());
    }

    private static NDArray ofArray(GraphBlock.Call call, NDArray x) {
        return call.call("row", call.call("column", x.mul(call.array("w"))).tanh());
    }

    private static GraphBlock columnAndRow(boolean cut, GraphBlock.Single function) {
        return graph(3, function).add("column", first(cut, 8), 6).add("row", row(cut, 3), 8);
    }

    // two layers, or a layer and a block, that cut one axis in two ways
    static {
        // of one length on a rank, or not: what is compared is the cut
        otherwise(() -> sequence(columnOf(Cut.ofLengths(5, 3)), rowOf(Cut.ofLengths(4, 4))))
                .says(
                        "RowParallelLinear with a weight of (3, 8) .. [0,5) | [5,8) of 8 .. "
                                + HALVES);
        otherwise(() -> sequence(columnOf(Cut.ofLengths(5, 3)), rowOf(EVENS_AND_ODDS)))
                .says(
                        "RowParallelLinear with a weight of (3, 8) .. [0,5) | [5,8) of 8 .. "
                                + EVENS);
        otherwise(() -> sequence(columnOf(EVENS_AND_ODDS), rowOf(Cut.balanced(8, 2))))
                .says(EVENS + " .. " + HALVES);
        // the parameter is the first operand: only the graph knows of the slice
        otherwise(
                        () ->
                                sequence(
                                        graph(8, NetworksRefusedTest::timesColumn)
                                                .add("column", columnOf(EVENS_AND_ODDS), 4)
                                                .add("scale", new Shape(1, 1)),
                                        rowOf(Cut.balanced(8, 2))))
                .says("ColumnParallelLinear (8, 4) .. " + EVENS + " .. " + HALVES);
        otherwise(
                        () ->
                                sequence(
                                        graph(8, NetworksRefusedTest::sumOfTwo)
                                                .add("one", columnOf(EVENS_AND_ODDS), 4)
                                                .add("other", columnOf(Cut.balanced(8, 2)), 4),
                                        rowOf(EVENS_AND_ODDS)))
                .says(
                        "ColumnParallelLinear (8, 4) is cut over the ranks as .. "
                                + (EVENS + " .. " + HALVES + " .. optGatherOutput(true)"));
    }

    private static Row otherwise(Supplier<Block> block) {
        return net("cut otherwise", cut -> block.get(), HalfSquareLoss::new, "6x4", "6x3")
                .on(TENSOR_2)
                .trained();
    }

    private static Block columnOf(Cut cut) {
        return newColumn(8).optShardingStrategy(ShardingStrategy.rowwise(cut)).build();
    }

    private static Block rowOf(Cut cut) {
        return newRow(3).optShardingStrategy(ShardingStrategy.columnwise(cut)).build();
    }

    private static NDArray timesColumn(GraphBlock.Call call, NDArray x) {
        return call.value("scale").mul(call.call("column", x));
    }

    private static NDArray sumOfTwo(GraphBlock.Call call, NDArray x) {
        return call.call("one", x).add(call.call("other", x));
    }

    // losses of the model's arrays, or of a slice for the whole
    static {
        for (int penalized : new int[] {0, 2}) {
            Block[] net = new Block[1];
            net(
                            "a penalty on the model's arrays",
                            cut -> net[0] = network(cut),
                            () -> both(new HalfSquareLoss(), new Penalty(() -> net[0], penalized)),
                            "6x6",
                            "6x3")
                    .on(ALL)
                    .trained()
                    .says("arameter .. Linear_weight .. optWeightDecays");
        }
        // the second loss takes the slice for all classes
        forTheWhole(() -> head(6)).says("optGatherOutput(true)");
        forTheWhole(() -> fused(6)).says("optFusedLoss");
        // a head keeps the gradient of one of its outputs
        net(
                        "a fused head that is used twice",
                        cut -> {
                            Block head = cut ? fused(6) : linear(6);
                            return sequence(linear(6), outputs(head, sequence(tanh(), head)));
                        },
                        () ->
                                both(
                                        new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0),
                                        new IndexLoss(new VocabParallelCrossEntropyLoss(), 1, 0)),
                        "6x6",
                        "6:6")
                .on(ALL)
                .trained()
                .says("fused head .. (6, 6) .. optFusedLoss(false)");
        net(
                        "a loss of DJL on sliced logits",
                        cut -> head(7),
                        Loss::softmaxCrossEntropyLoss,
                        "6x5",
                        "6:7")
                .on(TENSOR_2)
                .trained()
                .says(
                        "SoftmaxCrossEntropyLoss .. slice of the classes .. "
                                + "VocabParallelCrossEntropyLoss .. optGatherOutput(true)");
        net(
                        "a vocab-parallel loss on gathered logits",
                        cut -> gathered(7),
                        VocabParallelCrossEntropyLoss::new,
                        "6x5",
                        "6:7")
                .on(TENSOR_2)
                .trained()
                .says("(6, 7) .. without optGatherOutput .. SoftmaxCrossEntropyLoss");
    }

    private static Loss both(Loss a, Loss b) {
        return new SimpleCompositeLoss().addLoss(a).addLoss(b);
    }

    private static Row forTheWhole(Supplier<Block> last) {
        Loss squares = new IndexLoss(new SquareSum(), 0);
        return net(
                "a composite loss that takes a slice for the whole",
                cut -> sequence(linear(6), tanh(), last.get()),
                () -> both(new VocabParallelCrossEntropyLoss(), squares),
                "6x6",
                "6:6");
    }

    private static Block network(boolean cut) {
        return sequence(linear(6), first(cut, 8), tanh(), row(cut, 3));
    }

    /** DJL's penalty, of an array that is there only once the trainer is. */
    private static final class Penalty extends Loss {
        private final Supplier<Block> block;
        private final int index;

        Penalty(Supplier<Block> block, int index) {
            super("penalty");
            this.block = block;
            this.index = index;
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray array = block.get().getParameters().valueAt(index).getArray();
            return new L2WeightDecay(new NDList(array)).evaluate(labels, predictions);
        }
    }

    private static final class SquareSum extends Loss {

        SquareSum() {
            super("squares");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().square().sum();
        }
    }

    /** The loss was made of the model's arrays, as DJL's examples do it. */
    @Test(timeOut = 60_000)
    public void aPenaltyOnArraysThatTheTrainerReplaces() {
        Block[] net = new Block[1];
        Network network =
                Network.of(
                        cut -> {
                            net[0] = network(cut);
                            net[0].initialize(manager, DataType.FLOAT32, new Shape(6, 6));
                            return net[0];
                        },
                        () -> {
                            NDArray weight = net[0].getParameters().valueAt(2).getArray();
                            return new SimpleCompositeLoss()
                                    .addLoss(new HalfSquareLoss())
                                    .addLoss(new L2WeightDecay(new NDList(weight)));
                        },
                        batches("6x6", "6x3"));
        for (TrainerKind kind : ALL) {
            network.assertRefused(kind, false, "optWeightDecays");
        }
    }

    // rows that the ranks do not have, put in another order, or change in place
    static {
        net(
                        "no rows at all",
                        cut -> sequence(linear(6), tanh(), head(9)),
                        VocabParallelCrossEntropyLoss::new,
                        "0x5",
                        "0:9")
                .on(DATA_4, MIXED_4, MIXED_2, MESH_2X2, MESH_3X2)
                .says("The batch has no rows");
        // the length fits, the rows do not
        net(
                        "an output whose first axis is not the batch",
                        cut -> sequence(linear(3), map(x -> x.mean(new int[] {0}))),
                        HalfSquareLoss::new,
                        "6x6",
                        "3")
                .on(ROWS_CUT)
                .says("axis 0 .. TENSOR mode");
        reordered("concat", x -> x.concat(x.mul(2), 0));
        reordered("concat", x -> x.concat(x.mul(2), 0).expandDims(1).tanh().squeeze(1));
        reordered("concat", x -> x.transpose().concat(x.transpose(), 1).transpose());
        reordered("flip", x -> x.flip(0));
        reordered("flip", x -> x.flip(0).add(x));
        // what is computed across rows would be that of a rank's rows
        across("mean", x -> x.sub(x.mean(new int[] {0}, true)));
        across("max", x -> x.div(x.abs().max().add(1)));
        across("softmax", x -> x.softmax(0));
        across("sort", x -> x.sort(0));
        across("cumSum", x -> x.reshape(-1, 1, 3).cumSum(0).reshape(-1, 3));
        across("matMul", x -> x.matMul(x.transpose().matMul(x)).mul(0.01f));
        across("matMul", x -> x.matMul(x.transpose()).softmax(1).matMul(x));
        across("sub", x -> x.expandDims(1).sub(x.expandDims(0)).mean(new int[] {1}));
        across("dot", x -> x.mul(sums(x).dot(sums(x)).mul(0.01f)));
        // ids are not in the graph
        net(
                        "rows of ids in another order",
                        cut -> {
                            Block twice = map(x -> x.concat(x.mul(2), 0));
                            return sequence(
                                    new PlainEmbedding(21, 2), twice, flatten(), first(cut, 3));
                        },
                        HalfSquareLoss::new,
                        "7x3:21",
                        "14x3")
                .on(DATA_2)
                .says("concat .. another order .. TENSOR mode");
        // the ranks of a process share the arrays of a batch
        inPlace(x -> x.muli(0.5f)).says("of the batch in place .. x.mul(2) .. duplicate()");
        inPlace(x -> x.subi(x.mean(new int[] {1}, true))).says("of the batch in place");
        inPlace(NetworksRefusedTest::changedView).says("of the batch in place");
        inPlace(x -> x.stopGradient().muli(0.5f)).says("of the batch in place");
        inPlace(NetworksRefusedTest::changedByCopy).says("of the batch in place");
        inPlace(NetworksRefusedTest::changedElement).says("of the batch in place");
        net(
                        "a label changed in place",
                        cut -> sequence(linear(6), first(cut, 4), row(cut, 3)),
                        HalvingLoss::new,
                        "7x6",
                        "7x3")
                .on(SHARING)
                .says("of the batch in place .. duplicate()");
    }

    private static NDArray sums(NDArray x) {
        return x.sum(new int[] {1});
    }

    private static NDArray changedByCopy(NDArray x) {
        x.mul(0.5f).copyTo(x);
        return x;
    }

    private static NDArray changedElement(NDArray x) {
        x.setScalar(new NDIndex(0, 0), 0.5f);
        return x;
    }

    private static void across(String name, UnaryOperator<NDArray> operation) {
        Row row =
                numbers(name, cut -> sequence(linear(3), map(operation), linear(3)))
                        .on(ROWS_CUT)
                        .says(name + " .. along its rows .. TENSOR mode");
        REORDERED.add(row.network);
    }

    private static void reordered(String name, UnaryOperator<NDArray> operation) {
        boolean twice = name.equals("concat");
        String order = name + " .. another order .. TENSOR mode";
        Row before =
                net(
                        "rows in another order",
                        cut -> sequence(linear(6), map(operation), first(cut, 4), row(cut, 3)),
                        HalfSquareLoss::new,
                        "7x6",
                        twice ? "14x3" : "7x3");
        Row after =
                net(
                        "outputs in another order",
                        cut -> sequence(linear(6), first(cut, 4), row(cut, 3), map(operation)),
                        HalfSquareLoss::new,
                        "7x6",
                        twice ? "14x3" : "7x3");
        before.on(ROWS_CUT).says(order);
        after.on(ROWS_CUT).says(order);
        new Row("rows in another order", before.network)
                .on(MIXED_2)
                .says(twice ? "gathers the batch .. TENSOR mode" : "another order .. TENSOR mode");
        REORDERED.add(before.network);
        REORDERED.add(after.network);
    }

    @Test(timeOut = 60_000)
    public void rowsInAnotherOrderInTensorMode() {
        REORDERED.forEach(network -> network.assertEqual(TENSOR_2));
    }

    private static Row inPlace(UnaryOperator<NDArray> operation) {
        return net(
                        "an input changed in place",
                        cut -> sequence(map(operation), linear(6), first(cut, 4), row(cut, 3)),
                        HalfSquareLoss::new,
                        "7x6",
                        "7x3")
                .on(SHARING);
    }

    private static NDArray changedView(NDArray x) {
        x.set(new NDIndex(":, 0"), column -> column.addi(3));
        return x;
    }

    private static final class HalvingLoss extends L2Loss {

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            labels.head().muli(0.5f);
            return super.evaluate(labels, predictions);
        }
    }

    /** Predictions have no loss, and the ranks go on afterwards. */
    @Test(timeOut = 60_000)
    public void aPredictionThatChangesItsInput() {
        Block halved = map(x -> x.getShape().get(0) == 2 ? x.muli(0.5f) : x);
        try (Model model = Blocks.model(sequence(halved, first(true, 4), row(true, 3)));
                ParallelInference ranks = new ParallelInference(model, TENSOR_2.config())) {
            ranks.initialize(new Shape(3, 6));
            for (int rows : new int[] {3, 2, 3}) {
                NDList input = new NDList(manager.ones(new Shape(rows, 6)));
                if (rows == 2) {
                    throwsArgument(() -> ranks.forward(input, manager));
                } else {
                    ranks.forward(input, manager);
                }
            }
        }
    }

    /** Every call throws, not only the first. */
    @Test(timeOut = 60_000)
    public void anOutputWhoseFirstAxisIsNotTheBatchAgain() {
        TrainingRun.of(
                DATA_2,
                sequence(linear(3), map(x -> x.getManager().ones(new Shape(6, 1)))),
                new HalfSquareLoss(),
                new Shape(6, 6),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDList data = new NDList(manager.ones(new Shape(6, 6)));
                        throwsArgument(() -> trainer.evaluate(data), "axis 0");
                    }
                });
    }

    // features of a slice that are mixed over its heads, or with those of other ranks
    static {
        mixed("softmax over heads", Slices.ofHeads(x -> x.softmax(2)));
        mixed("sum over heads", Slices.ofHeads(x -> x.cumSum(2)));
        mixed("other order of heads", Slices.ofHeads(x -> x.flip(2)));
        mixed("mean over heads", Slices.ofHeads(x -> x.sub(x.mean(new int[] {2}, true))));
        mixed("largest of heads", Slices.ofHeads(x -> x.sub(x.max(new int[] {2}, true))));
        mixed("heads in a circle", Slices.ofHeads(NetworksRefusedTest::circle));
        mixed("product over heads", Slices.ofHeads(x -> x.matMul(x.swapAxes(2, 3).matMul(x))));
        mixed("dim before heads", x -> Slices.heads(x).swapAxes(2, 3).reshape(x.getShape()));
        mixed("heads before tokens", x -> Slices.heads(x).swapAxes(1, 2).reshape(x.getShape()));
        mixed("softmax of columns", Slices.ofColumns(x -> x.softmax(1)));
        mixed("log softmax of columns", Slices.ofColumns(x -> x.logSoftmax(1)));
        mixed("sum of columns", Slices.ofColumns(x -> x.cumSum(1)));
        mixed("mean over heads of columns", Slices.ofColumns(NetworksRefusedTest::minusMean));
        mixed("softmax over heads of all tokens", NetworksRefusedTest::ofAllTokens);
        mixed("largest of heads, rows in two halves", Slices.ofHeads(NetworksRefusedTest::halves));
        mixed("product over heads of a feature", Slices.ofHeads(NetworksRefusedTest::product));
        mixed("pool over features", NetworksRefusedTest::pooled);
        mixed("an unknown operation", x -> x.rotate90(2, new int[] {1, 2}));
        // a product over the features of a slice is a summand of that over all of them
        slices("a product", x -> x.batchMatMul(x.transpose(0, 2, 1).batchMatMul(x)))
                .on(TENSOR_2, MIXED_2)
                .says("does not commute .. batchMatMul");
        slices("weights", x -> x.batchMatMul(x.transpose(0, 2, 1)).softmax(-1).batchMatMul(x))
                .on(TENSOR_2, MIXED_2)
                .says("does not commute .. batchMatMul");
        // the length is that of the slice, the order is not
        slices("features in another order", NetworksRefusedTest::swapped)
                .says(
                        "ColumnParallelLinear .. no longer the last axis, in their order .."
                                + " swapAxes .. optGatherOutput(true)");
        new Row("a convolution", Slices.network(NetworksRefusedTest::convolution))
                .on(TENSOR_2)
                .trained()
                .says("convolution .. optGatherOutput(true)");
        slices("a channel of a batch normalization a token", NetworksRefusedTest::batchNorm)
                .trained()
                .says("batchNorm .. optGatherOutput(true)");
        // repeated one after another, the keys would be those of other queries
        new Row("keys in another order", Slices.grouped(0))
                .on(TENSOR_2)
                .says("optGatherOutput(true)");
    }

    private static Row slices(String name, UnaryOperator<NDArray> function) {
        return new Row(name, Slices.network(() -> map(function))).on(TENSOR_2);
    }

    /** With two features a rank, each rank has one head: an axis of length 1. */
    private static void mixed(String name, UnaryOperator<NDArray> function) {
        slices(name, function);
        slices(name, function).on(SIX).trained();
    }

    private static NDArray ofAllTokens(NDArray x) {
        return x.reshape(Slices.ROWS * 3, -1, Slices.DIM).softmax(1).reshape(x.getShape());
    }

    private static NDArray product(NDArray x) {
        return x.matMul(x.swapAxes(2, 3)).softmax(3).matMul(x);
    }

    private static Block convolution() {
        Conv1d.Builder conv = Conv1d.builder().setKernelShape(new Shape(3)).setFilters(3);
        return conv.optPadding(new Shape(1)).build();
    }

    private static NDArray circle(NDArray heads) {
        return NDArrays.concat(new NDList(heads.get(":,:,1:"), heads.get(":,:,:1")), 2);
    }

    /** Columns are [rows, features, tokens], with heads [rows, heads, dim, tokens]. */
    private static NDArray minusMean(NDArray columns) {
        NDArray heads = columns.reshape(Slices.ROWS, -1, Slices.DIM, 3);
        return heads.sub(heads.mean(new int[] {1}, true)).reshape(columns.getShape());
    }

    private static NDArray halves(NDArray x) {
        NDArray largest = x.reshape(2, Slices.ROWS / 2, 3, -1, Slices.DIM).max(new int[] {3}, true);
        return largest.reshape(Slices.ROWS, 3, 1, Slices.DIM).add(x);
    }

    private static NDArray pooled(NDArray x) {
        Shape one = new Shape(1);
        return x.getNDArrayInternal().maxPool(new Shape(3), one, one, false);
    }

    private static NDArray swapped(NDArray x) {
        NDArray pairs = x.reshape(-1, 3, x.getShape().get(2) / 2, 2);
        return pairs.swapAxes(2, 3).reshape(x.getShape());
    }

    private static NDArray batchNorm(NDArray x) {
        NDArray ones = x.getManager().ones(new Shape(3));
        NDArray zeros = ones.mul(0);
        NDArray variance = ones.mul(1);
        return x.getNDArrayInternal()
                .batchNorm(x, zeros, variance, ones, ones, 1, 0.9f, 1e-5f, true)
                .head();
    }

    /** Operations of a later pass, as many, of the same names, with results of the same shapes. */
    @DataProvider
    public Object[][] changes() {
        return new Object[][] {
            change("another operation", NDArray::tanh, x -> x.softmax(2)),
            change("a flip", NDArray::tanh, x -> x.flip(2)),
            change("another axis", x -> x.softmax(1), x -> x.softmax(2)),
            change("another axis of length 1", x -> mean(x, 1), x -> mean(x, 2)),
            change("the sum of other elements", x -> x.cumSum(1), x -> x.cumSum(2)),
        };
    }

    private static NDArray mean(NDArray x, int axis) {
        return x.sub(x.mean(new int[] {axis}, true));
    }

    private static Object[] change(
            String name, UnaryOperator<NDArray> before, UnaryOperator<NDArray> after) {
        return new Object[] {name, before, after};
    }

    private static NDList random(NDManager manager, int seed, long... shape) {
        return new NDList(TrainingRun.random(manager, seed, shape));
    }

    /** A network that computes something else of a later batch is looked at again. */
    @Test(dataProvider = "changes", timeOut = 60_000)
    public void aStepOfTheSameShape(
            String name, UnaryOperator<NDArray> before, UnaryOperator<NDArray> after) {
        boolean[] changed = new boolean[1]; // between two steps, read by all ranks
        for (TrainerKind kind : List.of(TENSOR_2, MIXED_2)) {
            changed[0] = false;
            TrainingRun.of(
                    kind,
                    between(x -> (changed[0] ? after : before).apply(x)),
                    new HalfSquareLoss(),
                    new Shape(2, 3, 6),
                    (trainer, manager, numbers) -> {
                        steps(trainer, numbers, batches("2x3x6", "2x3x5"), 0, 3);
                        changed[0] = true;
                        expect(
                                RuntimeException.class,
                                () -> steps(trainer, numbers, batches("2x3x6", "2x3x5"), 3, 4),
                                "does not commute");
                    });
        }
    }

    private static Block between(UnaryOperator<NDArray> operation) {
        return sequence(first(true, 12), map(operation), row(true, 5));
    }

    /** A softmax of the features of a long sequence only. */
    private static NDArray ofLong(NDArray x) {
        return x.getShape().get(1) > 3 ? x.softmax(2) : x.tanh();
    }

    @Test(timeOut = 60_000)
    public void aPredictionOfAnotherShape() throws Exception {
        try (Model model = Blocks.model(between(NetworksRefusedTest::ofLong))) {
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(2, 3, 6));
            try (ParallelPredictor<NDList, NDList> predictor =
                    new ParallelPredictor<>(model, new NoopTranslator(), TENSOR_2.config())) {
                predictor.predict(random(manager, 0, 2, 3, 6));
                predictor.predict(random(manager, 1, 2, 3, 6));
                expect(
                        Exception.class,
                        () -> predictor.predict(random(manager, 1, 2, 4, 6)),
                        "does not commute");
                predictor.predict(random(manager, 2, 2, 3, 6));
            }
        }
    }

    /** What is frozen is not in the graph of later steps either. */
    @Test(timeOut = 60_000)
    public void anEvaluationAndAStepOfAnotherShape() {
        TrainingRun.of(
                TENSOR_2,
                sequence(frozen(first(true, 12)), map(NetworksRefusedTest::ofLong), row(true, 5)),
                new HalfSquareLoss(),
                new Shape(2, 3, 6),
                (trainer, manager, numbers) -> {
                    NDList data = random(manager, 1, 2, 3, 6);
                    trainer.evaluate(data);
                    step(trainer, data, random(manager, 2, 2, 3, 5));
                    NDList more = random(manager, 3, 2, 4, 6);
                    String part = "does not commute";
                    expect(RuntimeException.class, () -> trainer.evaluate(more), part);
                    NDList labels = random(manager, 4, 2, 4, 5);
                    expect(RuntimeException.class, () -> step(trainer, more, labels), part);
                });
    }

    /** A rank of which the rows alone are one throws, and the others wait for it no longer. */
    @Test(timeOut = 60_000)
    public void whatOneRankThrowsEndsTheOthers() {
        TrainingRun.of(
                MESH_2X2,
                between(x -> x.getShape().get(0) == 1 ? x.softmax(2) : x.tanh()),
                new HalfSquareLoss(),
                new Shape(4, 3, 6),
                (trainer, manager, numbers) -> {
                    step(trainer, random(manager, 4, 4, 3, 6), random(manager, 9, 4, 3, 5));
                    NDList data = random(manager, 3, 3, 3, 6);
                    NDList labels = random(manager, 9, 3, 3, 5);
                    expect(
                            RankFailedException.class,
                            () -> step(trainer, data, labels),
                            "does not commute");
                });
    }
}
