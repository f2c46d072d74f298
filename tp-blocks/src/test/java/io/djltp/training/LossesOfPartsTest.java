package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.IndexEvaluator;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;

import io.djltp.head.TopClasses;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Blocks;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;

/**
 * The loss of a batch, and the step that follows, do not depend on how the batch and the network
 * are cut: with uneven parts, with rows that do not count, with losses of DJL's and layers of every
 * setting.
 */
public class LossesOfPartsTest {

    private static final int ROWS = 7; // uneven over 2 and more ranks
    private static final int FEATURES = 6;
    private static final int CLASSES = 9;

    // fp32: a few steps with sums in another order
    private static final double TOLERANCE = 5e-6;

    /** DJL's evaluator of one of several outputs, which makes a list of that output alone. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void accuraciesOfTwoOutputs(TrainerKind kind) {
        TrainingRun expected = twoOutputs(TrainerKind.PLAIN);
        twoOutputs(kind).assertSame(expected, TOLERANCE);
    }

    private static TrainingRun twoOutputs(TrainerKind kind) {
        Loss losses =
                new SimpleCompositeLoss()
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0))
                        .addLoss(new IndexLoss(new VocabParallelCrossEntropyLoss(), 1, 1));
        return TrainingRun.of(
                kind,
                Blocks.outputs(Blocks.head(CLASSES), Blocks.fused(CLASSES)),
                losses,
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int rows : new int[] {ROWS, 1, 3}) {
                        NDList data = new NDList(TrainingRun.random(manager, 1, rows, FEATURES));
                        NDList labels =
                                new NDList(
                                        TrainingRun.labels(manager, 2, rows, CLASSES),
                                        TrainingRun.labels(manager, 3, rows, CLASSES));
                        accuracies(labels, trainer.evaluate(data), numbers);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data, labels);
                            collector.backward(trainer.getLoss().evaluate(labels, output));
                            accuracies(labels, output, numbers);
                        }
                        trainer.step();
                    }
                });
    }

    private static void accuracies(NDList labels, NDList output, List<Float> numbers) {
        for (int i = 0; i < output.size(); i++) {
            Evaluator accuracy = new IndexEvaluator(new VocabParallelAccuracy(3), i, i);
            NDArray right = accuracy.evaluate(labels, output).toType(DataType.FLOAT32, false);
            accuracy.addAccumulator("all");
            accuracy.updateAccumulators(new String[] {"all"}, labels, output);
            numbers.add(accuracy.getAccumulator("all"));
            TopClasses best = new VocabParallelTopK(2).evaluate(output.subNDList(1));
            for (NDArray values : new NDArray[] {right, best.logits()}) {
                for (float value : values.toFloatArray()) {
                    numbers.add(value);
                }
            }
        }
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void regressionWithUnevenParts(TrainerKind kind) {
        for (boolean bias : new boolean[] {true, false}) {
            Block dense =
                    sequence(linear(8, bias), tanh(), linear(5, bias), tanh(), linear(3, bias));
            Block cut =
                    sequence(
                            linear(8, bias),
                            tanh(),
                            head(5).optBias(bias).build(),
                            tanh(),
                            RowParallelLinear.builder().setUnits(3).optBias(bias).build());
            TrainingRun expected = regression(TrainerKind.PLAIN, dense, new HalfSquareLoss());
            regression(kind, cut, new HalfSquareLoss()).assertSame(expected, TOLERANCE);
        }
    }

    /** The batch is cut again after the head: what follows is data parallel. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void regressionWithADataParallelTail(TrainerKind kind) {
        Block dense =
                sequence(
                        linear(8, true),
                        tanh(),
                        linear(5, true),
                        tanh(),
                        linear(4, true),
                        tanh(),
                        linear(3, true));
        Block cut =
                sequence(
                        linear(8, true),
                        tanh(),
                        head(5).build(),
                        tanh(),
                        scattered(4),
                        tanh(),
                        linear(3, true));
        TrainingRun expected = regression(TrainerKind.PLAIN, dense, new HalfSquareLoss());
        regression(kind, cut, new HalfSquareLoss()).assertSame(expected, TOLERANCE);
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void rowParallelLayersOfWholeInputs(TrainerKind kind) {
        Block dense = sequence(linear(8, true), tanh(), linear(5, true), tanh(), linear(3, false));
        Block cut =
                sequence(
                        linear(8, true),
                        tanh(),
                        RowParallelLinear.builder()
                                .setUnits(5)
                                .optInputIsParallel(false)
                                .optBatchShardedInput(true)
                                .build(),
                        tanh(),
                        RowParallelLinear.builder()
                                .setUnits(3)
                                .optBias(false)
                                .optInputIsParallel(false)
                                .build());
        TrainingRun expected = regression(TrainerKind.PLAIN, dense, new HalfSquareLoss());
        regression(kind, cut, new HalfSquareLoss()).assertSame(expected, TOLERANCE);
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void lossesOfDjlOnGatheredLogits(TrainerKind kind) {
        for (boolean bias : new boolean[] {true, false}) {
            Block dense = sequence(linear(8, true), linear(CLASSES, bias));
            Block cut =
                    sequence(
                            linear(8, true),
                            head(CLASSES).optBias(bias).optGatherOutput(true).build());
            TrainingRun expected =
                    classification(TrainerKind.PLAIN, dense, Loss.softmaxCrossEntropyLoss(), -100);
            classification(kind, cut, Loss.softmaxCrossEntropyLoss(), -100)
                    .assertSame(expected, TOLERANCE);
        }
    }

    /** Rows that do not count are spread over the parts unevenly; a part may have no others. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void ignoredRowsInUnevenNumbers(TrainerKind kind) {
        for (int ignored : new int[] {3, 5}) {
            Block dense = sequence(linear(8, true), column(CLASSES));
            Block cut = sequence(linear(8, true), head(CLASSES).build());
            Loss loss = new VocabParallelCrossEntropyLoss();
            TrainingRun expected = classification(TrainerKind.PLAIN, dense, loss, ignored);
            classification(kind, cut, loss, ignored).assertSame(expected, TOLERANCE);
        }
    }

    private static TrainingRun regression(TrainerKind kind, Block block, Loss loss) {
        return TrainingRun.of(
                kind,
                block,
                loss,
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = TrainingRun.random(manager, i, ROWS, FEATURES);
                        NDArray labels = TrainingRun.random(manager, 10 + i, ROWS, 3);
                        numbers.add(TrainingRun.backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }

    /** The first {@code ignored} rows of each batch, or none if it is negative, do not count. */
    private static TrainingRun classification(
            TrainerKind kind, Block block, Loss loss, int ignored) {
        return TrainingRun.of(
                kind,
                block,
                loss,
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        NDArray data = TrainingRun.random(manager, i, ROWS, FEATURES);
                        NDArray labels = labels(manager, i, ignored);
                        numbers.add(TrainingRun.backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }

    private static NDArray labels(NDManager manager, long seed, int ignored) {
        long[] labels = TrainingRun.labels(manager, seed, ROWS, CLASSES).toLongArray();
        for (int i = 0; i < ignored; i++) {
            labels[i] = VocabParallelCrossEntropyLoss.DEFAULT_IGNORE_INDEX;
        }
        return manager.create(labels);
    }

    private static Block linear(long units, boolean bias) {
        return Blocks.linear(units, bias);
    }

    private static ColumnParallelLinear.Builder head(long units) {
        return ColumnParallelLinear.builder().setUnits(units).optBatchShardedInput(true);
    }
}
