package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.L2Loss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BinaryOperator;
import java.util.function.Function;

/**
 * A loss of any kind is that of the whole batch, wherever the rows and the classes are: a sum, a
 * mean of what a mask leaves, one of pairs of rows, one of several outputs.
 */
public class LossesOfRanksTest {

    private static final int ROWS = 7; // uneven
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    private static final Map<String, Loss> LOSSES = new LinkedHashMap<>();

    static {
        LOSSES.put("sum", loss((y, p) -> p.sub(y).square().sum().sqrt()));
        LOSSES.put(
                "mean of what a mask leaves",
                loss(
                        (y, p) -> {
                            NDArray mask = y.gt(0).toType(p.getDataType(), false);
                            NDArray squares = p.sub(y).square().mul(mask);
                            return squares.sum().div(mask.sum().maximum(1));
                        }));
        LOSSES.put(
                "all pairs of rows",
                loss(
                        (y, p) -> {
                            NDArray a = p.expandDims(0).sub(p.expandDims(1)).square();
                            NDArray b = y.expandDims(0).sub(y.expandDims(1)).square();
                            return a.sub(b).square().mean().add(p.square().mean());
                        }));
        LOSSES.put("a subclass of a mean", new SumOfSquares());
        LOSSES.put("a mean", Loss.l2Loss());
    }

    /** A sum, though its class says that it is a mean. */
    private static final class SumOfSquares extends L2Loss {
        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head().sub(labels.head()).square().sum().sqrt();
        }
    }

    private static Loss loss(BinaryOperator<NDArray> function) {
        return new Loss("own") {
            @Override
            public NDArray evaluate(NDList labels, NDList predictions) {
                return function.apply(labels.head(), predictions.head());
            }
        };
    }

    @DataProvider
    public Object[][] losses() {
        return LOSSES.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    private static Object[][] kinds() {
        List<Object[]> kinds = new ArrayList<>(List.of(TrainerKind.parallel(2, 3)));
        kinds.add(new Object[] {MESH_2X2});
        return kinds.toArray(new Object[0][]);
    }

    @Test(dataProvider = "losses", timeOut = 120_000)
    public void regression(String name) {
        Network.of(
                        cut -> sequence(linear(6), tanh(), first(cut, 8), tanh(), row(cut, 3)),
                        () -> LOSSES.get(name),
                        Network.regression(ROWS, FEATURES, 3))
                .assertEqual(kinds());
    }

    /** DJL's {@code MaskedSoftmaxCrossEntropyLoss} needs an operation that PyTorch has not. */
    private static final class MaskedCrossEntropy extends Loss {

        MaskedCrossEntropy() {
            super("masked");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray z = predictions.head().logSoftmax(-1);
            NDArray ids = labels.head().expandDims(-1);
            NDArray mask = labels.get(1).gt(0).toType(z.getDataType(), false);
            NDArray losses = z.gather(ids, -1).squeeze(-1).neg().mul(mask);
            return losses.sum().div(mask.sum().maximum(1));
        }
    }

    /** A row becomes three words, of which the first ones count. */
    @Test(timeOut = 60_000)
    public void wordsOfWhichAMaskLeavesSome() {
        Network.of(
                        cut ->
                                sequence(
                                        map(x -> x.reshape(-1, 3, 2)),
                                        linear(6),
                                        tanh(),
                                        linear(CLASSES)),
                        MaskedCrossEntropy::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(random(manager, step, ROWS, 6)),
                                    new NDList(
                                            labels(manager, step, ROWS * 3, CLASSES)
                                                    .reshape(ROWS, 3),
                                            random(manager, step + 9, ROWS, 3))
                                })
                .assertEqual(DATA_2, DATA_3, TENSOR_2);
    }

    /** Axis 0 of the output is rows and words in one. */
    @Test(timeOut = 60_000)
    public void rowsThatBecomeSeveral() {
        Network.of(
                        cut ->
                                sequence(
                                        map(x -> x.reshape(-1, 2)),
                                        linear(6),
                                        tanh(),
                                        linear(CLASSES)),
                        Loss::softmaxCrossEntropyLoss,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(random(manager, step, ROWS, 6)),
                                    new NDList(labels(manager, step, ROWS * 3, CLASSES))
                                })
                .assertEqual(DATA_2, DATA_3, TENSOR_2);
    }

    @Test(timeOut = 120_000)
    public void aCompositeLossWithIgnoredLabels() {
        Network.of(
                        cut -> sequence(linear(6), tanh(), head(CLASSES)),
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(new VocabParallelCrossEntropyLoss("a", 2))
                                        .addLoss(new VocabParallelCrossEntropyLoss("b", 5)),
                        Network.classification(ROWS, FEATURES, CLASSES))
                .assertEqual(kinds());
    }

    /** The second loss is of what each rank has its rows of only. */
    @Test(timeOut = 120_000)
    public void anAuxiliaryLossOnFeaturesOfTheBody() {
        auxiliary(cut -> sequence(linear(6), tanh(), outputs(head(CLASSES), map(NDArray::square))));
    }

    @Test(timeOut = 120_000)
    public void aPlainBranchBesideTheHead() {
        auxiliary(cut -> sequence(linear(8), tanh(), outputs(head(CLASSES), linear(6))));
        auxiliary(cut -> sequence(linear(8), tanh(), outputs(fused(CLASSES), linear(6))));
    }

    @Test(timeOut = 60_000)
    public void outputsOfAllLayers() {
        Network.of(
                        cut -> {
                            SequentialBlock block = sequence(linear(6), tanh(), head(CLASSES));
                            return block.setReturnIntermediate(true);
                        },
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(
                                                new IndexLoss(
                                                        new VocabParallelCrossEntropyLoss(), 2, 0))
                                        .addLoss(new IndexLoss(new HalfSquareLoss(), 1, 1)),
                        LossesOfRanksTest::twoLabels)
                .assertEqual(kinds());
    }

    private static void auxiliary(Function<Boolean, Block> block) {
        Network.of(
                        block,
                        () ->
                                new SimpleCompositeLoss()
                                        .addLoss(
                                                new IndexLoss(
                                                        new VocabParallelCrossEntropyLoss(), 0, 0))
                                        .addLoss(new IndexLoss(new HalfSquareLoss(), 1, 1)),
                        LossesOfRanksTest::twoLabels)
                .assertEqual(kinds());
    }

    private static NDList[] twoLabels(NDManager manager, int step) {
        return new NDList[] {
            new NDList(random(manager, step, ROWS, FEATURES)),
            new NDList(
                    labels(manager, 30 + step, ROWS, CLASSES), random(manager, 60 + step, ROWS, 6))
        };
    }

    /** Logits may be scaled and given other leading axes on their way to the loss. */
    @Test(timeOut = 60_000)
    public void logitsThatAreScaledAndReshaped() {
        Network.of(
                        cut ->
                                new GraphBlock(
                                                new Shape(CLASSES),
                                                (call, in) -> {
                                                    NDArray z = call.call("head", in.head());
                                                    z = z.mul(call.value("scale"));
                                                    return new NDList(z);
                                                })
                                        .add("head", head(CLASSES), FEATURES)
                                        .add("scale", new Shape(1, 1)),
                        VocabParallelCrossEntropyLoss::new,
                        Network.classification(ROWS, FEATURES, CLASSES))
                .assertEqual(kinds());
        Network.of(
                        cut -> sequence(linear(6), head(CLASSES), map(x -> x.expandDims(1))),
                        VocabParallelCrossEntropyLoss::new,
                        Network.classification(ROWS, FEATURES, CLASSES))
                .assertEqual(kinds());
    }
}
