package io.djltp.training;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.TopKAccuracy;
import ai.djl.training.loss.Loss;

import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A fused head is evaluated as a plain one, without its logits ever being there. */
public class FusedEvaluationTest {

    private static final LossOptions OPTIONS = new LossOptions(3, 0.2f, 0.05f);
    private static final int K = 5;

    private static Block fused() {
        return FusedTraining.network(head -> head.optFusedLoss(true));
    }

    private static void use(TrainerKind kind, Block block, FusedTraining.Use use) {
        FusedTraining.use(kind, block, FusedTraining.loss(OPTIONS), FusedTraining.sgd(), use);
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2, 3, 4);
    }

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    /** Loss, accuracy and best classes, and everything of DJL's that reads the logits. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsThePlainLayer(TrainerKind kind) {
        List<float[]> expected = new ArrayList<>();
        List<float[]> seen = new ArrayList<>();
        use(TrainerKind.PLAIN, fused(), (trainer, manager) -> evaluate(trainer, manager, expected));
        use(kind, fused(), (trainer, manager) -> evaluate(trainer, manager, seen));
        ArrayAssert.assertAllClose(seen, expected, 1e-5, "result");
    }

    private static void evaluate(Trainer trainer, NDManager manager, List<float[]> results) {
        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 0));
        NDList predictions = trainer.evaluate(new NDList(FusedTraining.data(manager, 0)));
        results.add(trainer.getLoss().evaluate(labels, predictions).toFloatArray());
        results.add(accuracy(new VocabParallelAccuracy(), labels, predictions));
        results.add(accuracy(new VocabParallelAccuracy(K), labels, predictions));
        try (TopClasses best = new VocabParallelTopK(K, true).evaluate(predictions)) {
            results.add(floats(best.classes().toLongArray()));
            results.add(best.logits().toFloatArray());
            results.add(best.logProbabilities().toFloatArray());
        }
        NDArray logits = predictions.head();
        NDList djl = logits.topK(K, 1, true, true);
        results.add(floats(djl.get(1).toLongArray()));
        results.add(djl.get(0).toFloatArray());
        results.add(accuracy(new Accuracy(), labels, predictions));
        results.add(accuracy(new TopKAccuracy(K), labels, predictions));
        Loss plain = Loss.softmaxCrossEntropyLoss();
        results.add(plain.evaluate(labels, predictions).toFloatArray());
        results.add(manager.ones(logits.getShape()).sub(logits).toFloatArray());
        int size = results.size(); // the best are those that DJL finds
        ArrayAssert.assertClose(results.get(size - 9), results.get(size - 6), 0, "classes");
        ArrayAssert.assertClose(results.get(size - 8), results.get(size - 5), 1e-6, "logits");
    }

    private static float[] floats(long[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = values[i];
        }
        return floats;
    }

    private static float[] accuracy(Evaluator evaluator, NDList labels, NDList predictions) {
        evaluator.addAccumulator("all");
        evaluator.updateAccumulator("all", labels, predictions);
        return new float[] {evaluator.getAccumulator("all")};
    }

    /** A whole evaluation between the backward pass and the step changes nothing. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void anEvaluationDoesNotDisturbAStep(int ranks) {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
        List<List<float[]>> weights = new ArrayList<>();
        for (boolean evaluated : new boolean[] {false, true}) {
            Block block = fused();
            use(
                    kind,
                    block,
                    (trainer, manager) -> {
                        for (int step = 0; step < 3; step++) {
                            TrainingRun.backward(
                                    trainer,
                                    FusedTraining.data(manager, step),
                                    FusedTraining.labels(manager, step));
                            if (evaluated) {
                                evaluate(trainer, manager, new ArrayList<>());
                            }
                            trainer.step();
                        }
                        trainer.close();
                        weights.add(TrainingRun.weights(block));
                    });
        }
        for (int i = 0; i < weights.get(0).size(); i++) {
            Assert.assertEquals(weights.get(1).get(i), weights.get(0).get(i), "parameter " + i);
        }
    }

    /** What would mix old features with new weights is refused, and the trainer goes on. */
    @Test(timeOut = 60_000)
    public void predictionsEndWithTheStep() {
        use(
                new TrainerKind(ParallelMode.TENSOR, 2),
                fused(),
                (trainer, manager) -> {
                    NDList predictions =
                            trainer.evaluate(new NDList(FusedTraining.data(manager, 0)));
                    for (int i = 0; i < 2; i++) {
                        TrainingRun.backward(
                                trainer,
                                FusedTraining.data(manager, 0),
                                FusedTraining.labels(manager, 0));
                        trainer.step();
                        Refusals.expect(
                                IllegalStateException.class,
                                () -> new VocabParallelTopK(1).evaluate(predictions),
                                "evaluate them before the step");
                        Assert.expectThrows(
                                IllegalStateException.class,
                                () -> predictions.head().toFloatArray());
                    }
                });
    }

    /** More classes than there are: refused, and the trainer goes on. */
    @Test(timeOut = 60_000)
    public void tooLargeAKIsRefused() {
        use(
                new TrainerKind(ParallelMode.TENSOR, 2),
                fused(),
                (trainer, manager) -> {
                    NDList predictions =
                            trainer.evaluate(new NDList(FusedTraining.data(manager, 0)));
                    IllegalArgumentException e =
                            Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () -> new VocabParallelTopK(24).evaluate(predictions));
                    Assert.assertEquals(
                            e.getMessage(),
                            "The 24 best of 23 classes were asked for: 1 to 23 can be had");
                    TopClasses all = new VocabParallelTopK(23).evaluate(predictions);
                    Assert.assertEquals(all.classes().getShape().get(1), 23);
                });
    }

    /** The logits would take 98 MiB; they come only when something reads them. */
    @Test(timeOut = 60_000)
    public void noLogitsInMemory() {
        int rows = 128;
        int classes = 200_000;
        Block block = sequence(ClassificationHead.builder().setUnits(classes).build());
        use(
                new TrainerKind(ParallelMode.TENSOR, 2),
                block,
                (trainer, manager) -> {
                    NDList labels = new NDList(TrainingRun.labels(manager, 1, rows, classes));
                    NDList data =
                            new NDList(
                                    TrainingRun.random(manager, 2, rows, FusedTraining.FEATURES));
                    trainer.evaluate(data);
                    long before = resetPeak();
                    NDList predictions = trainer.evaluate(data);
                    trainer.getLoss().evaluate(labels, predictions);
                    accuracy(new VocabParallelAccuracy(K), labels, predictions);
                    new VocabParallelTopK(K, true).evaluate(predictions);
                    Assert.assertTrue(peak() - before < 49 << 20, "peak " + (peak() - before));
                    predictions.head().get(0).toFloatArray();
                    Assert.assertTrue(peak() - before > 98 << 20, "peak " + (peak() - before));
                });
    }

    private static long resetPeak() throws IOException {
        Path reset = Path.of("/proc/self/clear_refs");
        if (!Files.isWritable(reset)) {
            throw new SkipException("this system does not tell the peak of memory");
        }
        Files.writeString(reset, "5");
        return peak();
    }

    private static long peak() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return 1024 * Long.parseLong(line.replaceAll("\\D", ""));
            }
        }
        throw new SkipException("this system does not tell the peak of memory");
    }
}
