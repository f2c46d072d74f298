package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** A head that draws classes goes on where one that does not has ended, and the other way round. */
public class ChangedSamplingTest {

    private static final int CHANGED = 2;
    private static final int STEPS = 5;

    /** Nothing is learned before the change: what comes after it is as if it had always been. */
    private static final ParameterTracker RATE = (name, update) -> update <= CHANGED ? 0 : 0.1f;

    private static Task task(float share) {
        return new Task(
                () -> {
                    ClassificationHead.Builder head =
                            newHead(23).optBatchShardedInput(true).optFusedMemory(2_000);
                    return sequence(
                            linear(6),
                            tanh(),
                            (share < 1 ? head.optSampleShare(share).optSampleSeed(5) : head)
                                    .build());
                },
                VocabParallelCrossEntropyLoss::new,
                () -> Optimizer.sgd().setLearningRateTracker(RATE).build(),
                (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                (manager, step) -> TrainingRun.labels(manager, step, 7, 23));
    }

    @DataProvider
    public Object[][] changes() {
        TrainerKind two = TENSOR_2;
        TrainerKind mixed = MIXED_3;
        return new Object[][] {
            {two, 0.4f, 1f},
            {two, 1f, 0.4f},
            {two, 0.4f, 0.7f},
            {mixed, 0.4f, 1f},
            {mixed, 1f, 0.4f}
        };
    }

    @Test(dataProvider = "changes", timeOut = 60_000)
    public void theNextStepsAreThoseOfTheNewShare(TrainerKind kind, float before, float after) {
        StoppedRun whole = StoppedRun.whole(kind, task(after), STEPS);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun other =
                            StoppedRun.saved(kind, task(before), List.of(CHANGED), folder);
                    Assert.assertNotEquals(other.losses.get(0), whole.losses.get(0));
                    StoppedRun.resumed(kind, task(after), CHANGED, STEPS, folder)
                            .assertEndOf(whole, before + " to " + after);
                });
    }
}
