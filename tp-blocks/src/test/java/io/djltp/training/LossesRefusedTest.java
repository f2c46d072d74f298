package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertFalse;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;

import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Blocks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/** What cannot be trained with is refused by one error, and the trainer goes on. */
public class LossesRefusedTest {

    private static final int ROWS = 6;
    private static final Shape INPUT = new Shape(ROWS, 5);
    private static final int CLASSES = 7;

    /** Nothing of it depends on a parameter. DJL's own trainer refuses it, too. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aLossWithoutAGraph(TrainerKind kind) {
        assertBackwardRefused(kind, (labels, logits) -> mean(labels));
        assertBackwardRefused(kind, (labels, logits) -> logits.head().stopGradient().sum());
        assertBackwardRefused(kind, (labels, logits) -> logits.head().argMax(1).sum());
    }

    private static void assertBackwardRefused(
            TrainerKind kind, BiFunction<NDList, NDList, NDArray> wrong) {
        assertGoesOn(
                kind,
                gathered(wrong),
                use -> {
                    try (GradientCollector collector = use.trainer.newGradientCollector()) {
                        NDArray loss = use.loss();
                        assertFalse(loss.isNaN().getBoolean()); // it has a value
                        assertRefused(
                                () -> collector.backward(loss), "parameter", "getLoss", "labels");
                    }
                });
    }

    /** The batch may stay open, as that of a loop whose arrays are one manager's does. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aTermOfPredictions(TrainerKind kind) {
        assertGoesOn(
                kind,
                gathered(new SoftmaxCrossEntropyLoss()::evaluate),
                use -> {
                    try (GradientCollector collector = use.trainer.newGradientCollector()) {
                        NDList labels = use.labels();
                        NDList output = use.trainer.forward(use.data(), labels);
                        NDArray loss = use.trainer.getLoss().evaluate(labels, output);
                        NDArray term = loss.add(output.head().square().mean());
                        assertRefused(
                                () -> collector.backward(term),
                                "(6, 7)",
                                "outside",
                                "SimpleCompositeLoss");
                    }
                    throwsState(use.trainer::step, "no gradients");
                });
    }

    /** As a term it is a number. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aTermWithoutAGraphIsNot(TrainerKind kind) {
        runTerm(kind).assertSame(runTerm(PLAIN), 1e-5);
    }

    private static TrainingRun runTerm(TrainerKind kind) {
        Network network = gathered((labels, logits) -> mean(labels));
        return TrainingRun.of(
                kind,
                network.block,
                network.loss,
                INPUT,
                (trainer, manager, numbers) -> {
                    Use use = new Use(trainer, manager);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray first = use.loss();
                        network.loss.isWrong = true;
                        NDArray sum = first.add(use.loss());
                        collector.backward(sum);
                        numbers.add(sum.getFloat());
                    }
                    trainer.step();
                });
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aLossThatReturnsNothing(TrainerKind kind) {
        assertGoesOn(
                kind,
                gathered((labels, logits) -> null),
                use -> {
                    assertRefused(use::loss, "The loss own has returned null", "scalar");
                    NDList output = use.trainer.evaluate(use.data());
                    assertRefused(() -> use.loss(output), "null");
                });
    }

    /** Of two passes, and of one with two kinds of labels. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void severalLossesOfAFusedHead(TrainerKind kind) {
        assertGoesOn(
                kind,
                withHead(),
                use -> {
                    Trainer trainer = use.trainer;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray first = use.loss();
                        NDArray second = use.loss();
                        assertHeadRefused(() -> collector.backward(first.add(second)));
                        NDList output = trainer.forward(use.data(), use.labels());
                        NDArray third = use.loss(output);
                        NDArray fourth = use.loss(output);
                        assertHeadRefused(() -> collector.backward(third.add(fourth)));
                        NDArray fifth = use.loss();
                        use.loss();
                        assertHeadRefused(() -> collector.backward(fifth));
                    }
                    throwsState(trainer::step, "no gradients");
                });
    }

    private static void assertHeadRefused(ThrowingRunnable call) {
        assertRefused(
                call, "fused head with the weight (7, 4)", "another loss", "optFusedLoss(false)");
    }

    /** It is known when the loss is computed for the first time. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aSumOfTwoLossesOfAFusedHead(TrainerKind kind) {
        Loss both =
                new SimpleCompositeLoss("both")
                        .addLoss(new VocabParallelCrossEntropyLoss())
                        .addLoss(new VocabParallelCrossEntropyLoss());
        assertGoesOn(
                kind,
                withHead(new VocabParallelCrossEntropyLoss(), both::evaluate),
                use -> {
                    assertRefused(use::loss, "2 losses of the fused head", "(7, 4)", "LossOptions");
                    NDList output = use.trainer.evaluate(use.data());
                    use.loss(output); // that is possible
                });
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anotherObject(TrainerKind kind) {
        Loss other = new VocabParallelCrossEntropyLoss();
        assertGoesOn(
                kind,
                withHead(),
                use -> {
                    for (NDList output :
                            List.of(
                                    use.trainer.forward(use.data()),
                                    use.trainer.evaluate(use.data()))) {
                        assertRefused(
                                () -> other.evaluate(use.labels(), output),
                                "(6, 7)",
                                "trainer.getLoss()");
                    }
                });
    }

    /** It is not a cut that is in the way: a head has no logits with one rank either. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anAccuracyOfDjlOnAFusedHead(TrainerKind kind) {
        assertGoesOn(
                kind,
                withHead(),
                use -> {
                    NDList output = use.trainer.forward(use.data(), use.labels());
                    String message =
                            expect(
                                            UnsupportedOperationException.class,
                                            () -> new Accuracy().evaluate(use.labels(), output),
                                            "(6, 7)",
                                            "fused head",
                                            "argMax()",
                                            "VocabParallelAccuracy",
                                            "be the last layer")
                                    .getMessage();
                    assertFalse(message.contains("cut over the ranks"), message);
                    new VocabParallelAccuracy().evaluate(use.labels(), output);
                });
    }

    /** A loss that is sound until a test says otherwise. */
    private static final class Switched extends SimpleCompositeLoss {

        private final Loss sound;
        private final BiFunction<NDList, NDList, NDArray> wrong;
        private volatile boolean isWrong;

        Switched(Loss sound, BiFunction<NDList, NDList, NDArray> wrong) {
            super("own"); // composite, as a loss of slices must be
            this.sound = sound;
            this.wrong = wrong;
        }

        @Override
        public NDArray evaluate(NDList labels, NDList logits) {
            return isWrong ? wrong.apply(labels, logits) : sound.evaluate(labels, logits);
        }
    }

    private record Network(Block block, Switched loss) {}

    private static Network gathered(BiFunction<NDList, NDList, NDArray> wrong) {
        Block last = Blocks.gathered(CLASSES);
        Switched loss = new Switched(new SoftmaxCrossEntropyLoss(), wrong);
        return new Network(sequence(linear(4), last), loss);
    }

    private static Network withHead() {
        Loss loss = new VocabParallelCrossEntropyLoss();
        return withHead(loss, loss::evaluate);
    }

    private static Network withHead(Loss sound, BiFunction<NDList, NDList, NDArray> wrong) {
        return new Network(sequence(linear(4), fused(CLASSES)), new Switched(sound, wrong));
    }

    /** A trainer in use. */
    private record Use(Trainer trainer, NDManager manager) {

        NDList data() {
            return new NDList(random(manager, 1, INPUT.getShape()));
        }

        NDList labels() {
            return new NDList(TrainingRun.labels(manager, 2, ROWS, CLASSES));
        }

        NDArray loss() {
            NDList labels = labels();
            return trainer.getLoss().evaluate(labels, trainer.forward(data(), labels));
        }

        NDArray loss(NDList output) {
            return trainer.getLoss().evaluate(labels(), output);
        }
    }

    /** Asserts that the steps before and after are those of a training in which nothing failed. */
    private static void assertGoesOn(TrainerKind kind, Network network, Consumer<Use> refused) {
        List<float[]> expected = run(kind, network, use -> {});
        List<float[]> actual = run(kind, network, refused);
        assertAllBitEqual(actual, expected, "parameter");
    }

    private static List<float[]> run(TrainerKind kind, Network network, Consumer<Use> between) {
        network.block.clear();
        return TrainingRun.of(
                        kind,
                        network.block,
                        network.loss,
                        INPUT,
                        (trainer, manager, numbers) -> {
                            Use use = new Use(trainer, manager);
                            backward(trainer, use.data().head(), use.labels().head());
                            trainer.step();
                            network.loss.isWrong = true;
                            between.accept(use);
                            network.loss.isWrong = false;
                            backward(trainer, use.data().head(), use.labels().head());
                            trainer.step();
                        })
                .getWeights();
    }

    private static NDArray mean(NDList labels) {
        return labels.head().toType(DataType.FLOAT32, false).mean();
    }

    private static void assertRefused(ThrowingRunnable call, String... parts) {
        throwsArgument(call, parts);
    }
}
