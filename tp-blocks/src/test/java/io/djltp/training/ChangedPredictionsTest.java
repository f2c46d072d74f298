package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Autograd;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Predictions that are changed in place before the loss or an accuracy is computed of them. */
public class ChangedPredictionsTest {

    private static final Shape INPUT = new Shape(5, 4);
    private static final int CLASSES = 3;

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {TrainerKind.mesh(2, 2)},
        };
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ofAnEvaluation(TrainerKind kind) {
        List<Float> expected = evaluate(TrainerKind.PLAIN, false);
        assertClose(evaluate(kind, false), expected, "" + kind);
        assertClose(evaluate(kind, true), evaluate(TrainerKind.PLAIN, true), kind + ", fused");
        Assert.assertNotEquals(expected.get(0), expected.get(1));
    }

    /** Returns losses and accuracies before and after changes. */
    private static List<Float> evaluate(TrainerKind kind, boolean fused) {
        List<Float> numbers = new ArrayList<>();
        Loss loss = fused ? new VocabParallelCrossEntropyLoss() : new HalfSquareLoss();
        train(
                kind,
                fused,
                loss,
                trainer -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        NDList labels = labels(manager, fused);
                        NDList output = trainer.evaluate(data(manager));
                        numbers.add(trainer.getLoss().evaluate(labels, output).getFloat());
                        output.head().muli(-2f);
                        numbers.add(trainer.getLoss().evaluate(labels, output).getFloat());
                        output.head().get(0).addi(1f); // through a view
                        numbers.add(trainer.getLoss().evaluate(labels, output).getFloat());
                        if (fused) {
                            VocabParallelAccuracy accuracy = new VocabParallelAccuracy(1);
                            accuracy.addAccumulator("a");
                            accuracy.updateAccumulator("a", labels, output);
                            numbers.add(accuracy.getAccumulator("a"));
                        }
                    }
                });
        return numbers;
    }

    /** Outside of a graph libtorch lets it be: the ranks have the graph of what they computed. */
    @SuppressWarnings("try") // a scope is used by being open
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ofATrainingAreRefused(TrainerKind kind) {
        train(
                kind,
                false,
                new HalfSquareLoss(),
                trainer -> {
                    try (NDManager manager = NDManager.newBaseManager()) {
                        NDList labels = labels(manager, false);
                        NDList output = trainer.forward(data(manager), labels);
                        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                            output.head().addi(1f);
                        }
                        IllegalArgumentException e =
                                Assert.expectThrows(
                                        IllegalArgumentException.class,
                                        () -> trainer.getLoss().evaluate(labels, output));
                        Assert.assertTrue(
                                e.getMessage().contains("Output 0 of the network, (5, 3)")
                                        && e.getMessage().contains("duplicate()"),
                                e.getMessage());
                    }
                });
    }

    /** Under DJL, too, the next loss sees what a loss has made of the predictions. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void ofALossThatChangesThem(TrainerKind kind) {
        Loss doubling =
                new Loss("doubling") {
                    @Override
                    public NDArray evaluate(NDList labels, NDList predictions) {
                        NDArray error = predictions.head().muli(2f).sub(labels.head());
                        return error.square().mean();
                    }
                };
        List<Float> plain = new ArrayList<>();
        for (TrainerKind each : List.of(TrainerKind.PLAIN, kind)) {
            List<Float> numbers = new ArrayList<>();
            train(
                    each,
                    false,
                    doubling,
                    trainer -> {
                        try (NDManager manager = NDManager.newBaseManager()) {
                            NDList output = trainer.evaluate(data(manager));
                            NDList labels = labels(manager, false);
                            numbers.add(trainer.getLoss().evaluate(labels, output).getFloat());
                        }
                    });
            if (each == TrainerKind.PLAIN) {
                plain.addAll(numbers);
            } else {
                assertClose(numbers, plain, "" + kind);
            }
        }
    }

    private interface Use {
        void run(Trainer trainer);
    }

    private static void train(TrainerKind kind, boolean fused, Loss loss, Use use) {
        Block block =
                fused
                        ? sequence(linear(6), tanh(), fused(CLASSES))
                        : sequence(linear(6), first(true, 7), tanh(), row(true, CLASSES));
        TrainingRun.of(kind, block, loss, INPUT, (trainer, manager, numbers) -> use.run(trainer));
    }

    private static NDList data(NDManager manager) {
        return new NDList(TrainingRun.random(manager, 1, INPUT.getShape()));
    }

    private static NDList labels(NDManager manager, boolean classes) {
        int rows = (int) INPUT.get(0);
        return new NDList(
                classes
                        ? TrainingRun.labels(manager, 2, rows, CLASSES)
                        : TrainingRun.random(manager, 2, rows, CLASSES));
    }

    private static void assertClose(List<Float> actual, List<Float> expected, String what) {
        ArrayAssert.assertClose(floats(actual), floats(expected), 2e-6, what);
    }

    private static float[] floats(List<Float> numbers) {
        float[] values = new float[numbers.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = numbers.get(i);
        }
        return values;
    }
}
