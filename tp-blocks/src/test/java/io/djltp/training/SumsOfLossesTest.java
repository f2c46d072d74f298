package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;

/** Terms that a training loop of the user's own adds up before it goes backward. */
public class SumsOfLossesTest {

    private static final int ROWS = 5;
    private static final int FEATURES = 4;
    private static final int CLASSES = 7;
    private static final double TOLERANCE = 5e-6; // fp32: a few steps with sums in another order

    /** With other labels, and a factor of its own. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twoLossesOfOnePass(TrainerKind kind) {
        Loss loss = new VocabParallelCrossEntropyLoss();
        Shape input = new Shape(ROWS, FEATURES);
        TrainingRun expected =
                TrainingRun.of(TrainerKind.PLAIN, network(), loss, input, SumsOfLossesTest::train);
        TrainingRun.of(kind, network(), loss, input, SumsOfLossesTest::train)
                .assertSame(expected, TOLERANCE);
    }

    private static void train(Trainer trainer, NDManager manager, List<Float> numbers) {
        for (int step = 0; step < 3; step++) {
            NDList data = new NDList(TrainingRun.random(manager, step, ROWS, FEATURES));
            NDList first = new NDList(TrainingRun.labels(manager, 10 + step, ROWS, CLASSES));
            NDList second = new NDList(TrainingRun.labels(manager, 20 + step, ROWS, CLASSES));
            NDList third = new NDList(TrainingRun.labels(manager, 30 + step, ROWS, CLASSES));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList output = trainer.forward(data, first);
                NDArray a = trainer.getLoss().evaluate(first, output);
                NDArray b = trainer.getLoss().evaluate(second, output);
                numbers.add(trainer.getLoss().evaluate(third, output).getFloat()); // for the log
                NDArray three = a.zerosLike().add(3);
                NDArray sum = a.mul(three).add(b);
                numbers.add(sum.getFloat());
                collector.backward(step == 2 ? a : sum);
            }
            trainer.step();
        }
    }

    /** Predictions are values: a term that is computed from them would have no gradient. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aTermOnPredictionsIsRefused(TrainerKind kind) {
        Block block = sequence(linear(6), gathered(3));
        TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    NDList data = new NDList(TrainingRun.random(manager, 1, ROWS, FEATURES));
                    NDList labels = new NDList(TrainingRun.random(manager, 2, ROWS, 3));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(data, labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        NDArray term = loss.add(output.head().square().mean());
                        Refusals.expect(
                                IllegalArgumentException.class,
                                () -> collector.backward(term),
                                "(5, 3)",
                                "SimpleCompositeLoss");
                    }
                });
    }

    /** A product over the features of a slice is a summand of that over all of them. */
    @Test(timeOut = 60_000)
    public void productsOverASliceAreRefused() {
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
            for (boolean linear : new boolean[] {false, true}) {
                Block block =
                        sequence(
                                head(8),
                                new LambdaBlock(x -> new NDList(attention(x, linear))),
                                row(3));
                Refusals.expect(
                        IllegalArgumentException.class,
                        () ->
                                TrainingRun.of(
                                        new TrainerKind(mode, 2),
                                        block,
                                        new HalfSquareLoss(),
                                        new Shape(ROWS, 3, FEATURES),
                                        SumsOfLossesTest::oneStep),
                        "does not commute",
                        "batchMatMul");
            }
        }
    }

    private static NDArray attention(NDList input, boolean linear) {
        NDArray x = input.head(); // [rows, times, features]
        NDArray keys = x.transpose(0, 2, 1);
        return linear
                ? x.batchMatMul(keys.batchMatMul(x))
                : x.batchMatMul(keys).softmax(-1).batchMatMul(x);
    }

    private static void oneStep(Trainer trainer, NDManager manager, List<Float> numbers) {
        NDArray data = TrainingRun.random(manager, 1, ROWS, 3, FEATURES);
        TrainingRun.backward(trainer, data, TrainingRun.random(manager, 2, ROWS, 3, 3));
    }

    private static Block network() {
        return sequence(linear(6), tanh(), head(CLASSES));
    }
}
