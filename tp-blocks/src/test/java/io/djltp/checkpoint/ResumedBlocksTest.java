package io.djltp.checkpoint;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** A training that is stopped and goes on from its checkpoint, of blocks that keep something. */
public class ResumedBlocksTest {

    private static final int STEPS = 6;

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (ResumedTasks each : ResumedTasks.values()) {
            cases.add(new Object[] {each, new TrainerKind(ParallelMode.TENSOR, 2)});
            cases.add(new Object[] {each, new TrainerKind(ParallelMode.MIXED, 3)});
            cases.add(new Object[] {each, TrainerKind.mesh(2, 2)});
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void theBitsAreThoseOfARunThatWasNotStopped(ResumedTasks of, TrainerKind kind) {
        StoppedRun whole = StoppedRun.whole(kind, of.task(), STEPS);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(kind, of.task(), List.of(1, 4), folder)
                            .assertBeginningOf(whole);
                    for (int stop : new int[] {1, 4}) {
                        StoppedRun.resumed(kind, of.task(), stop, STEPS, folder)
                                .assertEndOf(whole, of + " after " + stop);
                    }
                });
    }

    @DataProvider
    public Object[][] accumulated() {
        TrainerKind mixed = new TrainerKind(ParallelMode.MIXED, 3);
        return new Object[][] {
            {ResumedTasks.MARGIN_HEAD, new TrainerKind(ParallelMode.TENSOR, 2), 2},
            {ResumedTasks.EXPERTS, TrainerKind.mesh(2, 2), 2},
            {ResumedTasks.BATCH_NORMS, mixed.clippedTo(0.05f), 1},
            {ResumedTasks.EXPERTS, TrainerKind.mesh(2, 2).clippedTo(0.05f), 2}
        };
    }

    /** The gradients of two batches are added up in a step, or their norm is limited, or both. */
    @Test(dataProvider = "accumulated", timeOut = 60_000)
    public void ofMicroBatchesAndClippedGradients(ResumedTasks of, TrainerKind kind, int batches) {
        Task task = of.task().inMicroBatches(batches);
        StoppedRun whole = StoppedRun.whole(kind, task, STEPS);
        Assert.assertNotEquals(
                whole.losses,
                StoppedRun.whole(kind.clippedTo(0), of.task(), STEPS).losses,
                "neither has an effect");
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(kind, task, List.of(3), folder).assertBeginningOf(whole);
                    StoppedRun.resumed(kind, task, 3, STEPS, folder).assertEndOf(whole, "" + of);
                });
    }

    @DataProvider
    public Object[][] tasks() {
        return Arrays.stream(ResumedTasks.values())
                .map(each -> new Object[] {each})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "tasks", timeOut = 60_000)
    public void atAnotherSizeItIsTheSameTraining(ResumedTasks of) {
        TrainerKind from = new TrainerKind(ParallelMode.TENSOR, 2);
        StoppedRun whole = StoppedRun.whole(from, of.task(), STEPS);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun.saved(from, of.task(), List.of(3), folder);
                    for (TrainerKind to :
                            List.of(
                                    new TrainerKind(ParallelMode.TENSOR, 4),
                                    new TrainerKind(ParallelMode.DATA, 1))) {
                        StoppedRun.resumed(to, of.task(), 3, STEPS, folder)
                                .assertCloseToEndOf(whole, 1e-4, of + " on " + to);
                    }
                });
    }
}
