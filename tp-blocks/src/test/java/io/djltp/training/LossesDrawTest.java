package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.ShardedPredictions;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Random;

/**
 * A loss that draws random numbers would be another one on each rank: it is refused in every mode,
 * at its first draw, and numbers that come with the labels are the remedy.
 */
public class LossesDrawTest {

    private static final int ROWS = 5;
    private static final int FEATURES = 4;
    private static final int UNITS = 3;
    private static final Shape INPUT = new Shape(ROWS, FEATURES);

    /** At the first pass, in an evaluation and in training, and also where it begins to later. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aLossThatDraws(TrainerKind kind) {
        for (int quiet : new int[] {0, 2}) {
            Weighted loss = new Weighted();
            TrainingRun run =
                    TrainingRun.of(
                            kind,
                            block(),
                            loss,
                            INPUT,
                            (trainer, manager, numbers) -> {
                                step(trainer, manager, quiet, numbers);
                                loss.draws = true;
                                assertRefused(() -> step(trainer, manager, 1, numbers));
                                assertRefused(() -> evaluate(trainer, manager));
                                loss.draws = false;
                                step(trainer, manager, 3, numbers); // nothing is lost
                            });
            TrainingRun plain =
                    TrainingRun.of(
                            PLAIN,
                            block(),
                            new Weighted(),
                            INPUT,
                            (trainer, manager, numbers) -> {
                                step(trainer, manager, quiet, numbers);
                                step(trainer, manager, 3, numbers);
                            });
            run.assertSame(plain, 1e-5);
        }
    }

    /** There is one generator, and one who draws from it. */
    @Test(timeOut = 60_000)
    public void oneRank() {
        for (ParallelMode mode : ParallelMode.values()) {
            TrainingRun run = runDrawing(new TrainerKind(mode, 1));
            run.assertSame(runDrawing(PLAIN), 1e-5);
        }
    }

    private static TrainingRun runDrawing(TrainerKind kind) {
        Weighted loss = new Weighted();
        loss.draws = true;
        return TrainingRun.of(
                kind,
                block(),
                loss,
                INPUT,
                (trainer, manager, numbers) -> {
                    manager.getEngine().setRandomSeed(7);
                    step(trainer, manager, 3, numbers);
                });
    }

    /** The remedy that the error names. */
    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void numbersThatComeWithTheLabels(TrainerKind kind) {
        runGiven(kind).assertSame(runGiven(PLAIN), 1e-5);
    }

    private static TrainingRun runGiven(TrainerKind kind) {
        return TrainingRun.of(
                kind,
                block(),
                new Weighted(),
                INPUT,
                (trainer, manager, numbers) -> {
                    Random random = new Random(3);
                    for (int i = 0; i < 3; i++) {
                        NDList labels = labels(manager);
                        labels.add(random(manager, random.nextLong(), ROWS, UNITS));
                        train(trainer, manager, labels, numbers);
                    }
                });
    }

    @Test(dataProvider = "eachMode", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void anEvaluatorOnRanks(TrainerKind kind) {
        TrainingRun.of(
                kind,
                sequence(linear(FEATURES), head(UNITS)),
                new VocabParallelCrossEntropyLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    NDList output = trainer.evaluate(new NDList(manager.ones(INPUT)));
                    NDList labels = new NDList(manager.zeros(new Shape(ROWS)));
                    expect(
                            UnsupportedOperationException.class,
                            () ->
                                    ((ShardedPredictions) output)
                                            .evaluateOnRanks(labels, LossesDrawTest::noise),
                            "An evaluator draws",
                            "LossesDrawTest.noise");
                });
    }

    private static NDArray noise(NDList labels, NDList predictions) {
        NDArray label = labels.head();
        return label.getManager().randomUniform(0, 1, label.getShape());
    }

    private static void assertRefused(Assert.ThrowingRunnable call) {
        expect(
                UnsupportedOperationException.class,
                call,
                "The loss weighted draws random numbers",
                "LossesDrawTest$Weighted.evaluate",
                "one more array of the labels",
                "optRandomCheck(false)");
    }

    private static Block block() {
        return sequence(linear(FEATURES), gathered(UNITS));
    }

    private static NDList labels(NDManager manager) {
        return new NDList(random(manager, 2, ROWS, UNITS));
    }

    private static void step(Trainer trainer, NDManager manager, int steps, List<Float> numbers) {
        for (int i = 0; i < steps; i++) {
            train(trainer, manager, labels(manager), numbers);
        }
    }

    private static void train(
            Trainer trainer, NDManager manager, NDList labels, List<Float> numbers) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList data = new NDList(random(manager, 1, ROWS, FEATURES));
            NDArray loss = trainer.getLoss().evaluate(labels, trainer.forward(data, labels));
            numbers.add(loss.getFloat());
            collector.backward(loss);
        }
        trainer.step();
    }

    private static void evaluate(Trainer trainer, NDManager manager) {
        NDList data = new NDList(random(manager, 1, ROWS, FEATURES));
        trainer.getLoss().evaluate(labels(manager), trainer.evaluate(data));
    }

    /** The mean of squares, weighted by numbers that are drawn, or given, or by none. */
    private static final class Weighted extends Loss {

        private volatile boolean draws;

        Weighted() {
            super("weighted");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray squares = predictions.head().sub(labels.head()).square();
            if (draws) {
                NDManager manager = predictions.head().getManager();
                squares = squares.mul(manager.randomUniform(0, 1, squares.getShape()));
            } else if (labels.size() > 1) {
                squares = squares.mul(labels.get(1));
            }
            return squares.mean();
        }
    }
}
