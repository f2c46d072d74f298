package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;

import io.djltp.checkpoint.StateWriter.PendingSave;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Ranks;
import io.djltp.testing.Unchecked;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/** A checkpoint is written while training goes on, whatever the disk does. */
public class SaveWhileTrainingTest {

    private static final int STEPS = 6;

    @DataProvider
    public Object[][] tasks() {
        return new Object[][] {
            {ResumedTasks.MARGIN_HEAD}, // updates its weight while it computes the gradient
            {ResumedTasks.BAGS}, // updates rows of a table
            {ResumedTasks.BATCH_NORMS}, // changes buffers in its forward pass
            {ResumedTasks.EXPERTS}
        };
    }

    /** Each write takes longer than a step. */
    @Test(dataProvider = "tasks", timeOut = 60_000)
    public void whatIsWrittenSlowlyIsOfItsStep(ResumedTasks of) {
        StoppedRun whole = StoppedRun.whole(TENSOR_2, of.task(), STEPS);
        AtomicInteger writes = new AtomicInteger();
        StoppedRun.inFolder(
                root -> {
                    StoppedRun run = saving(of, root, bytes -> sleep(writes));
                    run.assertEndOf(whole, "" + of);
                    Path quick = root.resolve("quick");
                    Path slow = root.resolve("slow");
                    Checkpoints.assertSame(quick, slow, 2, "" + of);
                    String index = "step-00000002/" + CheckpointIndex.FILE;
                    Assert.assertEquals( // the cuts and the values too
                            Files.readString(slow.resolve(index)),
                            Files.readString(quick.resolve(index)));
                });
        Assert.assertTrue(writes.get() > 5);
    }

    private static void sleep(AtomicInteger writes) {
        try {
            writes.incrementAndGet();
            Thread.sleep(20);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Saves after step 2, twice: at once, and while the next steps are made. */
    private static StoppedRun saving(ResumedTasks of, Path root, Checkpoints.Before before)
            throws IOException {
        PendingSave[] pending = new PendingSave[1];
        try (CheckpointFolder slow = CheckpointFolder.open(root.resolve("slow"))) {
            Checkpoints.beforeWrites(slow, before);
            StoppedRun run =
                    StoppedRun.run(
                            TENSOR_2,
                            of.task(),
                            42,
                            0,
                            STEPS,
                            (trainer, state, step) -> {
                                if (step == 2) {
                                    StoppedRun.save(state, root.resolve("quick"));
                                    pending[0] = StoppedRun.begin(state, slow);
                                }
                            });
            Assert.assertTrue(pending[0].isDone()); // the state has waited for it
            Assert.assertNull(pending[0].getFailure());
            return run;
        }
    }

    /** A full disk. */
    @Test(timeOut = 60_000)
    public void aWriterThatFailsDoesNotEndTheTraining() {
        ResumedTasks of = ResumedTasks.MARGIN_HEAD;
        StoppedRun whole = StoppedRun.whole(TENSOR_2, of.task(), STEPS);
        StoppedRun.inFolder(
                root -> {
                    try (CheckpointFolder folder = CheckpointFolder.open(root.resolve("full"))) {
                        AtomicInteger saves = new AtomicInteger();
                        StoppedRun run =
                                StoppedRun.run(
                                        TENSOR_2,
                                        of.task(),
                                        42,
                                        0,
                                        STEPS,
                                        (trainer, state, step) ->
                                                saveOnFullDisk(folder, state, step, saves));
                        run.assertEndOf(whole, "the training");
                        Assert.assertEquals(folder.getSteps().toString(), "[3]");
                    }
                });
    }

    private static void saveOnFullDisk(
            CheckpointFolder folder, TrainingState state, int step, AtomicInteger saves) {
        if (step < 1 || step > 3) {
            return;
        }
        boolean full = saves.incrementAndGet() < 3; // then there is room again
        Checkpoints.beforeWrites(
                folder,
                bytes -> {
                    if (full) {
                        throw new IOException("No space left on device");
                    }
                });
        PendingSave save = StoppedRun.begin(state, folder);
        Assert.assertEquals(save.await(), !full);
        if (full) {
            Assert.assertTrue(save.getFailure().getMessage().contains("No space left on device"));
        }
    }

    /** A disk that is gone: the next step goes on after half of the ranks' time-out. */
    @Test(timeOut = 60_000)
    public void aWriterThatHangsIsGivenUp() {
        CountDownLatch gone = new CountDownLatch(1);
        StoppedRun.Task task = ResumedTasks.BAGS.task();
        StoppedRun.inFolder(
                root -> {
                    try (CheckpointFolder folder = CheckpointFolder.open(root.resolve("hangs"))) {
                        Checkpoints.beforeWrites(folder, bytes -> await(gone));
                        PendingSave save = hang(task, folder, gone);
                        Assert.assertFalse(save.await());
                        Assert.assertTrue(folder.getSteps().isEmpty());
                    }
                });
    }

    private static void await(CountDownLatch latch) {
        Unchecked.run(() -> latch.await());
    }

    private static PendingSave hang(
            StoppedRun.Task task, CheckpointFolder folder, CountDownLatch gone) {
        ParallelConfig ranks =
                Ranks.builder(ParallelMode.TENSOR, 2).optTimeout(Duration.ofSeconds(1)).build();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            try (ParallelTrainer trainer = new ParallelTrainer(model, task.begin(model), ranks);
                    TrainingState state = new TrainingState(trainer)) {
                trainer.initialize(task.data().make(manager, 0).getShape());
                PendingSave save = StoppedRun.begin(state, folder);
                for (int step = 0; step < 3; step++) {
                    task.step(trainer, manager, step);
                }
                Assert.assertFalse(save.isDone());
                PendingSave next = StoppedRun.begin(state, folder);
                Assert.assertTrue(next.getFailure().getMessage().contains("still being written"));
                gone.countDown();
                return save;
            }
        }
    }
}
