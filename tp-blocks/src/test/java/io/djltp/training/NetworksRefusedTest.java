package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.frozen;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.L2WeightDecay;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/**
 * Networks that ranks cannot compute are refused before the first step, and before an evaluation
 * tells a number, with an error that names the layer or the parameter and the remedy.
 */
public class NetworksRefusedTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 6;
    private static final int CLASSES = 6;

    private static final String GATHER = "optGatherOutput(true)";

    /** What may not be done to the slice of 4 of 8 features. */
    @DataProvider
    public Object[][] afterAColumn() {
        List<Object[]> cases = new ArrayList<>();
        add(cases, "a linear layer", () -> linear(3));
        add(cases, "a layer normalization", () -> sequence(LayerNorm.builder().build(), row3()));
        add(cases, "a batch normalization", () -> sequence(BatchNorm.builder().build(), row3()));
        add(cases, "a softmax", () -> sequence(map(x -> x.softmax(-1)), row3()));
        add(cases, "a frozen softmax", () -> frozen(sequence(map(x -> x.softmax(-1)), row3())));
        add(cases, "a half", () -> map(x -> x.get(":, :3")));
        add(cases, "a gate of two halves", () -> map(x -> x.get(":, ::2").mul(x.get(":, 1::2"))));
        add(cases, "a sum", () -> sequence(map(x -> x.sum(new int[] {-1}, true)), linear(3)));
        add(cases, "a flip", () -> sequence(map(x -> x.flip(1)), row3()));
        add(cases, "three heads", () -> sequence(reshape(-1, 8, 1, 1), reshape(-1, 2, 4), row3()));
        return cases.toArray(new Object[0][]);
    }

    private interface Tail {
        Block make();
    }

    private static void add(List<Object[]> cases, String name, Tail tail) {
        cases.add(new Object[] {name, tail});
    }

    private static Block row3() {
        return io.djltp.nn.RowParallelLinear.builder().setUnits(3).build();
    }

    @Test(dataProvider = "afterAColumn", timeOut = 60_000)
    public void whatDoesNotCommuteWithTheCut(String name, Object tail) {
        for (boolean body : new boolean[] {true, false}) {
            Network net =
                    regression(
                            cut ->
                                    sequence(
                                            body ? sequence(linear(6), tanh()) : tanh(),
                                            first(cut, 8),
                                            ((Tail) tail).make()));
            net.assertRefused(TENSOR_2, "ColumnParallelLinear", GATHER);
            net.assertRefused(MIXED_2, "ColumnParallelLinear", GATHER);
            net.assertRefused(MESH_2X2, "ColumnParallelLinear", GATHER);
        }
    }

    /** Nothing below the softmax is trained: the graph of training does not know it. */
    @Test(timeOut = 60_000)
    public void aSoftmaxOfAFrozenColumn() {
        Network net =
                regression(
                        cut ->
                                sequence(
                                        frozen(first(cut, 8)),
                                        map(x -> x.softmax(-1)),
                                        row(cut, 3)));
        net.assertRefused(TENSOR_2, "ColumnParallelLinear", "softmax", GATHER);
        net.assertRefused(MIXED_2, "ColumnParallelLinear", "softmax", GATHER);
        net.assertRefused(MESH_2X2, "ColumnParallelLinear", "softmax", GATHER);
    }

    @Test(timeOut = 60_000)
    public void aFlattenedSequenceBeforeARow() {
        for (Block flatten : new Block[] {reshape(-1, 12), flatten()}) {
            Network net =
                    regression(
                            cut ->
                                    sequence(
                                            reshape(-1, 3, 2),
                                            first(cut, 4),
                                            flatten,
                                            row(cut, 3)));
            net.assertRefused(TENSOR_2, "ColumnParallelLinear", GATHER);
            net.assertRefused(MIXED_2, "ColumnParallelLinear", GATHER);
            net.assertRefused(MESH_2X2, "ColumnParallelLinear", GATHER);
        }
    }

    /** With as many units as inputs the layer would be the identity. */
    @Test(timeOut = 60_000)
    public void aFusedLayerThatIsNotLast() {
        for (Function<Boolean, Block> tail :
                List.<Function<Boolean, Block>>of(
                        cut -> linear(CLASSES),
                        cut -> tanh(),
                        cut -> map(x -> x.add(0)),
                        cut -> map(x -> x.reshape(x.getShape())),
                        cut -> head(CLASSES))) {
            Network net = classification(cut -> sequence(fused(FEATURES), tail.apply(cut)));
            net.assertRefused(TENSOR_2, "optFusedLoss");
            net.assertRefused(MIXED_2, "optFusedLoss");
            net.assertRefused(TENSOR_1, "optFusedLoss");
        }
    }

    @Test(timeOut = 60_000)
    public void aWeightTiedToAFusedHead() {
        Network net =
                classification(
                        cut -> {
                            Block head = fused(CLASSES);
                            return new GraphBlock(
                                            new Shape(CLASSES),
                                            (call, in) -> {
                                                NDArray w = call.value("w");
                                                NDArray x = in.head().matMul(w).tanh();
                                                return new NDList(call.call("head", x));
                                            })
                                    .add("head", head, FEATURES)
                                    .tie("w", head.getDirectParameters().get("weight"));
                        });
        net.assertRefused(TENSOR_1, false, "shared", "optFusedLoss");
    }

    @Test(timeOut = 60_000)
    public void aBlockBeforeAndAfterTheGather() {
        Network net =
                Network.of(
                        cut -> {
                            Block shared = linear(FEATURES);
                            return sequence(
                                    shared, first(cut, 8), tanh(), row(cut, FEATURES), shared);
                        },
                        HalfSquareLoss::new,
                        Network.regression(ROWS, FEATURES, FEATURES));
        net.assertRefused(MIXED_2, false, "Linear_", "Give the two uses a block each");
    }

    /** Over the axis tensor, the gradient of the first use is whole, that of the second is not. */
    @Test(timeOut = 60_000)
    public void aScaleOfTheWholeAndOfASlice() {
        Network net =
                regression(
                        cut ->
                                new GraphBlock(
                                                new Shape(3),
                                                (call, in) -> {
                                                    NDArray scale = call.value("scale");
                                                    NDArray x = in.head().mul(scale);
                                                    x = call.call("column", x).mul(scale).tanh();
                                                    return new NDList(call.call("row", x));
                                                })
                                        .add("column", first(cut, 8), FEATURES)
                                        .add("row", row(cut, 3), 8)
                                        .add("scale", new Shape(1, 1)));
        net.assertRefused(TENSOR_2, false, "scale", "Give the two uses a block each");
        net.assertRefused(MESH_2X2, false, "scale", "Give the two uses a block each");
    }

    @Test(timeOut = 60_000)
    public void aBranchThatJoinsBehindTheGather() {
        for (Function<Boolean, Block> body :
                List.<Function<Boolean, Block>>of(cut -> linear(FEATURES), cut -> tanh())) {
            for (int rows : new int[] {2, 6}) { // one row of a rank would be broadcast
                Network net =
                        Network.of(
                                cut ->
                                        sequence(
                                                body.apply(cut),
                                                sum(sequence(first(cut, 8), row(cut, 6)), tanh())),
                                HalfSquareLoss::new,
                                Network.regression(rows, FEATURES, 6));
                net.assertRefused(MIXED_2, "optBatchShardedInput(true)");
            }
        }
    }

    @Test(timeOut = 60_000)
    public void oneOfTwoBranchesGathers() {
        Network net =
                regression(
                        cut ->
                                sequence(
                                        linear(FEATURES),
                                        sum(
                                                sequence(first(cut, 8), tanh(), row(cut, 3)),
                                                sequence(column(cut, 8), tanh(), row(cut, 3)))));
        net.assertRefused(MIXED_2, "optBatchShardedInput(true)");
    }

    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aBlockThatDoesNotAskItsStore(TrainerKind kind) {
        Network net =
                regression(
                        cut ->
                                new GraphBlock(
                                                new Shape(3),
                                                (call, in) -> {
                                                    NDArray x = in.head().mul(call.array("w"));
                                                    x = call.call("column", x).tanh();
                                                    return new NDList(call.call("row", x));
                                                })
                                        .add("column", first(cut, 8), FEATURES)
                                        .add("row", row(cut, 3), 8)
                                        .add("w", new Shape(1, FEATURES)));
        net.assertRefused(kind, false, "array of parameter", "ask the parameter store");
    }

    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aPenaltyOnTheModelsArrays(TrainerKind kind) {
        for (int penalized : new int[] {0, 2}) {
            Block[] net = new Block[1];
            Network network =
                    Network.of(
                            cut -> {
                                net[0] = sequence(linear(6), first(cut, 8), tanh(), row(cut, 3));
                                return net[0];
                            },
                            () ->
                                    new SimpleCompositeLoss()
                                            .addLoss(new HalfSquareLoss())
                                            .addLoss(new Penalty(() -> net[0], penalized)),
                            Network.regression(ROWS, FEATURES, 3));
            network.assertRefused(kind, false, "arameter", "Linear_weight", "optWeightDecays");
        }
    }

    /** The loss was made of the model's arrays, as DJL's examples do it. */
    @Test(timeOut = 60_000)
    public void aPenaltyOnArraysThatTheTrainerReplaces() {
        Block[] net = new Block[1];
        try (NDManager manager = NDManager.newBaseManager()) {
            Network network =
                    Network.of(
                            cut -> {
                                net[0] = sequence(linear(6), first(cut, 8), tanh(), row(cut, 3));
                                net[0].initialize(
                                        manager, DataType.FLOAT32, new Shape(ROWS, FEATURES));
                                return net[0];
                            },
                            () ->
                                    new SimpleCompositeLoss()
                                            .addLoss(new HalfSquareLoss())
                                            .addLoss(
                                                    new L2WeightDecay(
                                                            new NDList(
                                                                    net[0].getParameters()
                                                                            .valueAt(2)
                                                                            .getArray()))),
                            Network.regression(ROWS, FEATURES, 3));
            for (TrainerKind kind : new TrainerKind[] {TENSOR_2, MIXED_2, DATA_2, MESH_2X2}) {
                network.assertRefused(kind, false, "optWeightDecays");
            }
        }
    }

    /** DJL's penalty, of an array that is there only once the trainer is. */
    private static final class Penalty extends Loss {
        private final java.util.function.Supplier<Block> block;
        private final int index;

        Penalty(java.util.function.Supplier<Block> block, int index) {
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

    /** The second loss takes the slice for all classes. */
    @Test(timeOut = 60_000)
    public void aCompositeLossThatTakesASliceForTheWhole() {
        for (boolean fused : new boolean[] {false, true}) {
            Network net =
                    Network.of(
                            cut -> sequence(linear(6), tanh(), fused ? fused(6) : head(6)),
                            () ->
                                    new SimpleCompositeLoss()
                                            .addLoss(new VocabParallelCrossEntropyLoss())
                                            .addLoss(new IndexLoss(new SquareSum(), 0)),
                            Network.classification(ROWS, FEATURES, CLASSES));
            String remedy = fused ? "optFusedLoss" : GATHER;
            net.assertRefused(TENSOR_2, remedy);
            net.assertRefused(MIXED_2, remedy);
            net.assertRefused(MESH_2X2, remedy);
        }
    }

    /** A head keeps the gradient of one of its outputs. */
    @Test(timeOut = 60_000)
    public void aFusedHeadThatIsUsedTwice() {
        Network net =
                Network.of(
                        cut -> {
                            Block head = cut ? fused(CLASSES) : linear(CLASSES);
                            return sequence(linear(6), outputs(head, sequence(tanh(), head)));
                        },
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(
                                                new IndexLoss(
                                                        new VocabParallelCrossEntropyLoss(), 0, 0))
                                        .addLoss(
                                                new IndexLoss(
                                                        new VocabParallelCrossEntropyLoss(), 1, 0)),
                        Network.classification(ROWS, FEATURES, CLASSES));
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, MIXED_2, MESH_2X2, DATA_2}) {
            net.assertRefused(kind, false, "fused head", "(6, 6)", "optFusedLoss(false)");
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

    @Test(timeOut = 60_000)
    public void logitsThatAreFlattened() {
        Network net =
                classification(cut -> sequence(linear(6), head(CLASSES), map(NDArray::flatten)));
        net.assertRefused(TENSOR_2, "ColumnParallelLinear", GATHER);
        net.assertRefused(MIXED_2, "ColumnParallelLinear", GATHER);
        net.assertRefused(MESH_2X2, "ColumnParallelLinear", GATHER);
    }

    /** Tokens as rows of their own before the head: their number is not that of the batch. */
    @Test(timeOut = 60_000)
    public void tokensFlattenedBeforeTheBatchIsGathered() {
        Network net = regression(cut -> sequence(reshape(-1, 2), first(cut, 8), row(cut, 3)));
        net.assertRefused(
                MIXED_2,
                "ColumnParallelLinear with a weight of (8, 2)",
                "3 of 6",
                "(9, 2)",
                "[rows, tokens, features]",
                "TENSOR mode");
    }

    /** The length fits, the rows do not. */
    @Test(timeOut = 60_000)
    public void anOutputWhoseFirstAxisIsNotTheBatch() {
        Network net =
                Network.of(
                        cut -> sequence(linear(3), map(x -> x.mean(new int[] {0}))),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(manager.ones(new Shape(ROWS, FEATURES))),
                                    new NDList(manager.ones(new Shape(3)))
                                });
        net.assertRefused(DATA_2, "axis 0", "TENSOR mode");
        net.assertRefused(MESH_2X2, "axis 0", "TENSOR mode");
    }

    /** Every call throws, not only the first. */
    @Test(timeOut = 60_000)
    public void anOutputWhoseFirstAxisIsNotTheBatchIsRefusedAgain() {
        TrainingRun.of(
                DATA_2,
                sequence(linear(3), map(x -> x.getManager().ones(new Shape(ROWS, 1)))),
                new HalfSquareLoss(),
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDList data = new NDList(manager.ones(new Shape(ROWS, FEATURES)));
                        IllegalArgumentException e =
                                expectThrows(
                                        IllegalArgumentException.class,
                                        () -> trainer.evaluate(data));
                        assertTrue(e.getMessage().contains("axis 0"), e.getMessage());
                    }
                });
    }

    private static Network regression(Function<Boolean, Block> block) {
        return Network.of(block, HalfSquareLoss::new, Network.regression(ROWS, FEATURES, 3));
    }

    private static Network classification(Function<Boolean, Block> block) {
        return Network.of(
                block,
                VocabParallelCrossEntropyLoss::new,
                Network.classification(ROWS, FEATURES, CLASSES));
    }
}
