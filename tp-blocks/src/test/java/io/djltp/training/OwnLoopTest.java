package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** Training loops of the user's own do on ranks what they do with DJL's trainer. */
public class OwnLoopTest {

    private static final int ROWS = 7; // uneven over 2 and more ranks
    private static final int FEATURES = 5;
    private static final int CLASSES = 11;

    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void forwardWithoutLabels(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDList labels = new NDList(labels(manager, i));
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(new NDList(data(manager, i)));
                            NDArray loss = trainer.getLoss().evaluate(labels, output);
                            numbers.add(loss.getFloat());
                            collector.backward(loss);
                        }
                        trainer.step();
                    }
                });
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void twiceTheLossHasTwiceTheGradients(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    // an array, not a number: DJL would free it before the backward pass
                    NDArray two = manager.create(2f);
                    NDList labels = new NDList(labels(manager, 0));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data(manager, 0)));
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        collector.backward(loss.mul(two));
                    }
                    trainer.step();
                });
        float[] once = biasGradient(kind, false);
        float[] twice = biasGradient(kind, true);
        for (int i = 0; i < once.length; i++) {
            Assert.assertEquals(twice[i], 2 * once[i], 0); // a factor of two rounds nothing
        }
    }

    /** The gradients that rank 0 has of its part of the last bias. */
    private static float[] biasGradient(TrainerKind kind, boolean doubled) {
        float[][] gradient = new float[1][];
        TrainingRun.of(
                kind,
                parallel(),
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    NDArray two = manager.create(2f);
                    NDList labels = new NDList(labels(manager, 0));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data(manager, 0)), labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        collector.backward(doubled ? loss.mul(two) : loss);
                    }
                    gradient[0] =
                            ((ParallelTrainer) trainer)
                                    .getParameterStore(0)
                                    .getValue(
                                            trainer.getModel()
                                                    .getBlock()
                                                    .getParameters()
                                                    .valueAt(3),
                                            Device.cpu(),
                                            true)
                                    .getGradient()
                                    .toFloatArray();
                });
        return gradient[0];
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void gradientsOfSeveralBatchesAddUp(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = data(manager, 2 * i);
                        numbers.add(TrainingRun.backward(trainer, data, labels(manager, 2 * i)));
                        data = data(manager, 2 * i + 1);
                        numbers.add(
                                TrainingRun.backward(trainer, data, labels(manager, 2 * i + 1)));
                        trainer.step();
                    }
                });
    }

    /** One backward pass of two forward passes, in one collector. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aSumOfTwoLosses(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    NDList labels = new NDList(labels(manager, 0));
                    NDList others = new NDList(labels(manager, 1));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList first = trainer.forward(new NDList(data(manager, 0)));
                        NDList second = trainer.forward(new NDList(data(manager, 1)));
                        Loss loss = trainer.getLoss();
                        NDArray sum =
                                loss.evaluate(labels, first).add(loss.evaluate(others, second));
                        numbers.add(sum.getFloat());
                        collector.backward(sum);
                    }
                    trainer.step();
                });
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void gradientsCanBeForgotten(TrainerKind kind) {
        TrainingRun expected =
                run(
                        TrainerKind.PLAIN,
                        (trainer, manager, numbers) -> {
                            TrainingRun.backward(trainer, data(manager, 1), labels(manager, 1));
                            trainer.step();
                        });
        TrainingRun actual =
                run(
                        kind,
                        (trainer, manager, numbers) -> {
                            TrainingRun.backward(trainer, data(manager, 0), labels(manager, 0));
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                collector.zeroGradients();
                            }
                            TrainingRun.backward(trainer, data(manager, 1), labels(manager, 1));
                            trainer.step();
                        });
        actual.assertSame(expected, TOLERANCE);
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void frozenParametersKeepTheirValues(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    freeze(trainer, 0, true); // before the first step
                    steps(trainer, manager, numbers, 2);
                    freeze(trainer, 0, false);
                    freeze(trainer, 2, true); // the tensor-parallel layer, between steps
                    steps(trainer, manager, numbers, 2);
                    freeze(trainer, 2, false);
                    steps(trainer, manager, numbers, 1);
                });
    }

    /** Nothing is summed over the ranks for a parameter that is not trained. */
    @Test(timeOut = 60_000)
    public void frozenParametersCommunicateNothing() {
        run(
                new TrainerKind(ParallelMode.DATA, 2),
                (trainer, manager, numbers) -> {
                    ParallelTrainer parallel = (ParallelTrainer) trainer;
                    freeze(trainer, 0, true);
                    steps(trainer, manager, numbers, 2); // the third compares no replicas
                    TrainingRun.backward(trainer, data(manager, 0), labels(manager, 0));
                    var before = parallel.getCollectiveCounts();
                    trainer.step();
                    // the weight and the bias of the other layer, in one bucket
                    CollectiveCounts counts = parallel.getCollectiveCounts().minus(before);
                    Assert.assertEquals(counts.toString(), "1 all-reduce");
                    long elements = 8 * CLASSES + CLASSES;
                    Assert.assertEquals(counts.bytes(), elements * Float.BYTES);
                });
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void evaluatingBetweenForwardAndBackwardChangesNothing(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager, numbers) -> {
                    NDList labels = new NDList(labels(manager, 0));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data(manager, 0)), labels);
                        NDList others = new NDList(labels(manager, 1));
                        NDList other = trainer.evaluate(new NDList(data(manager, 1)));
                        numbers.add(trainer.getLoss().evaluate(others, other).getFloat());
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        numbers.add(loss.getFloat());
                        collector.backward(loss);
                    }
                    trainer.step();
                });
    }

    private static void steps(Trainer trainer, NDManager manager, List<Float> numbers, int steps) {
        for (int i = 0; i < steps; i++) {
            numbers.add(TrainingRun.backward(trainer, data(manager, i), labels(manager, i)));
            trainer.step();
        }
    }

    private static void freeze(Trainer trainer, int layer, boolean freeze) {
        Block block = trainer.getModel().getBlock().getChildren().valueAt(layer);
        block.freezeParameters(freeze);
    }

    private static void assertSame(TrainerKind kind, TrainingRun.Loop loop) {
        run(kind, loop).assertSame(run(TrainerKind.PLAIN, loop), TOLERANCE);
    }

    private static TrainingRun run(TrainerKind kind, TrainingRun.Loop loop) {
        boolean plain = kind.equals(TrainerKind.PLAIN);
        return TrainingRun.of(
                kind,
                plain ? plain() : parallel(),
                plain ? Loss.softmaxCrossEntropyLoss() : new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, FEATURES),
                loop);
    }

    private static Block plain() {
        return sequence(linear(8), tanh(), linear(CLASSES));
    }

    private static Block parallel() {
        return sequence(linear(8), tanh(), head(CLASSES));
    }

    private static NDArray data(NDManager manager, long seed) {
        return TrainingRun.random(manager, seed, ROWS, FEATURES);
    }

    private static NDArray labels(NDManager manager, long seed) {
        return TrainingRun.labels(manager, seed, ROWS, CLASSES);
    }
}
