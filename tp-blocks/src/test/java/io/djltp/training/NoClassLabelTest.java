package io.djltp.training;

import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.Blocks;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * A label that is no class is refused with its row of the batch by loss and accuracy, on every rank
 * before any of them begins, so that nothing has changed.
 */
public class NoClassLabelTest {

    private static final int ROWS = 6;
    private static final int CLASSES = 7;

    @DataProvider
    public Object[][] kinds() {
        Object[][] parallel = TrainerKind.parallel();
        Object[][] all = new Object[2 * parallel.length + 2][];
        for (int i = 0; i < all.length; i++) {
            TrainerKind kind = i / 2 < parallel.length ? (TrainerKind) parallel[i / 2][0] : PLAIN;
            all[i] = new Object[] {kind, i % 2 == 0};
        }
        return all;
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void trainingGoesOnAsIfNothingHadBeen(TrainerKind kind, boolean fused) {
        run(kind, fused, true).assertSame(run(kind, fused, false), 0);
    }

    private static TrainingRun run(TrainerKind kind, boolean fused, boolean bad) {
        Block head =
                ClassificationHead.builder()
                        .setUnits(CLASSES)
                        .optFusedLoss(fused)
                        .optBatchShardedInput(true)
                        .build();
        return TrainingRun.of(
                kind,
                Blocks.sequence(Blocks.linear(5), head),
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, 4),
                (trainer, manager, numbers) -> {
                    NDArray x = random(manager, 1, ROWS, 4);
                    float[] classes = {0, 1, 2, 3, -100, 5};
                    for (float label : bad ? new float[] {1.5f, -1, 7, Float.NaN} : new float[0]) {
                        float[] wrong = classes.clone();
                        wrong[ROWS - 1] = label; // of the last rank, where the batch is cut
                        NDArray labels = manager.create(wrong);
                        String value =
                                label == 1.5f || label != label ? "" + label : "" + (int) label;
                        String message = "The label of row 5 is " + value + ", but the labels of 7";
                        assertRefused(message, () -> backward(trainer, x, labels));
                        NDList output = trainer.evaluate(new NDList(x));
                        assertRefused(
                                message,
                                () ->
                                        new VocabParallelAccuracy()
                                                .evaluate(new NDList(labels), output));
                    }
                    if (bad) {
                        assertRefused(
                                "The loss needs one array of labels",
                                () ->
                                        trainer.getLoss()
                                                .evaluate(
                                                        new NDList(),
                                                        trainer.forward(new NDList(x))));
                    }
                    if (bad && kind != PLAIN) { // the trainer's own check
                        NDArray names = manager.create("a b c d e f".split(" "));
                        assertRefused(
                                "An array (6) of the batch holds strings",
                                () -> backward(trainer, x, names));
                    }
                    for (DataType type : new DataType[] {DataType.FLOAT32, DataType.INT32}) {
                        NDArray labels = manager.create(classes).toType(type, true);
                        numbers.add(backward(trainer, x, labels));
                        trainer.step();
                    }
                });
    }

    private static void assertRefused(String start, Assert.ThrowingRunnable call) {
        IllegalArgumentException e = expectThrows(IllegalArgumentException.class, call);
        assertTrue(e.getMessage().startsWith(start), e.getMessage());
    }
}
