package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

/** What is wrong with a batch is called by its name. */
public class EmptyAndNaNTest {

    private static final TrainerKind[] KINDS = {
        new TrainerKind(ParallelMode.TENSOR, 2),
        new TrainerKind(ParallelMode.MIXED, 2),
        TrainerKind.mesh(2, 2)
    };

    @Test(timeOut = 60_000)
    public void sequencesOfLengthZeroAndLabelsThatAreNoNumbers() {
        for (TrainerKind kind : KINDS) {
            TrainingRun.of(
                    kind,
                    sequence(linear(6), head(9)),
                    new VocabParallelCrossEntropyLoss(),
                    new Shape(4, 3, 5),
                    (trainer, manager, numbers) -> {
                        NDArray x = TrainingRun.random(manager, 1, 4, 3, 5);
                        NDArray labels = manager.zeros(new Shape(4, 3));
                        IllegalArgumentException e =
                                Refusals.expect(
                                        IllegalArgumentException.class,
                                        () ->
                                                trainer.evaluate(
                                                        new NDList(
                                                                manager.zeros(new Shape(4, 0, 5)))),
                                        "rows of the batch are empty: (4, 0, 5)");
                        float[] values = labels.toFloatArray();
                        values[2] = Float.NaN;
                        NDArray bad = manager.create(values, labels.getShape());
                        e =
                                Assert.expectThrows(
                                        IllegalArgumentException.class,
                                        () -> TrainingRun.backward(trainer, x, bad));
                        Assert.assertTrue(
                                e.getMessage().contains("position [0, 2] is NaN"), e.getMessage());
                        numbers.add(TrainingRun.backward(trainer, x, labels)); // nothing is lost
                    });
        }
    }
}
