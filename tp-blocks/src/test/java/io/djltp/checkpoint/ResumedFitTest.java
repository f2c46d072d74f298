package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.training.Trainer;
import ai.djl.training.listener.EarlyStoppingListener.EarlyStoppedException;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;

/**
 * {@code EasyTrain.fit} that breaks off anywhere, and goes on with another trainer from the newest
 * checkpoint: metrics, evaluations and weights are those of a run that was never interrupted, in
 * every bit.
 */
public class ResumedFitTest {

    private Path parent;

    @BeforeMethod
    public void makeFolder() throws IOException {
        parent = TestFolder.create();
    }

    @DataProvider
    public static Object[][] kinds() {
        return new Object[][] {
            {TENSOR_1}, {TENSOR_2}, {MIXED_3}, {DATA_2}, {MESH_2X2},
        };
    }

    /** Where a run breaks off: at which batch of training or of validation. */
    private enum Break {
        FIRST_STEP(2, 0), // of the batch the step is not done
        MIDDLE_OF_EPOCH(FittedRun.BATCHES + 3, 0),
        LAST_STEP_OF_EPOCH(0, 1),
        VALIDATION(0, FittedRun.BATCHES + 2),
        END_OF_EPOCH(FittedRun.BATCHES + 1, 0),
        TWO_EPOCHS(2 * FittedRun.BATCHES + 1, 0);

        private final int batch;
        private final int validated;

        Break(int batch, int validated) {
            this.batch = batch;
            this.validated = validated;
        }

        FittedRun.At listener() {
            return new FittedRun.At(
                    batch,
                    validated,
                    () -> {
                        throw new BrokenOff();
                    });
        }
    }

    /** Stands for the end of a process. */
    private static final class BrokenOff extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    @Test(dataProvider = "kinds", timeOut = 120_000)
    public void nothingIsLost(TrainerKind kind) throws Exception {
        FittedRun expected = new FittedRun(kind, parent.resolve("whole")).run(5);
        Assert.assertFalse(expected.resumed);
        Assert.assertEquals(expected.epochs, FittedRun.EPOCHS);
        for (Break where : Break.values()) {
            Path folder = parent.resolve(where.name());
            FittedRun broken = new FittedRun(kind, folder).with(where.listener());
            broken.settings().optEveryEpoch(true);
            Assert.assertThrows(BrokenOff.class, () -> broken.run(5));
            FittedRun resumed = new FittedRun(kind, folder).with(FittedRun.At.NEVER).run(99);
            Assert.assertTrue(resumed.resumed);
            resumed.assertSame(expected, kind + " " + where);
        }
    }

    /** A checkpoint that is older than the end of the run: its steps are done once more. */
    @Test(timeOut = 60_000)
    public void stepsAfterTheCheckpointAreDoneAgain() throws Exception {
        TrainerKind kind = TENSOR_2;
        FittedRun expected = new FittedRun(kind, parent.resolve("whole")).run(5);
        FittedRun broken =
                new FittedRun(kind, parent.resolve("3")).with(Break.MIDDLE_OF_EPOCH.listener());
        broken.settings().optEverySteps(3);
        Assert.assertThrows(BrokenOff.class, () -> broken.run(5));
        Assert.assertEquals(steps(broken.folder()), List.of("step-00000003", "step-00000006"));
        FittedRun resumed = new FittedRun(kind, broken.folder()).run(6);
        resumed.assertSame(expected, "every third step");
        Assert.assertEquals(
                steps(broken.folder()),
                List.of("step-00000010", "step-00000011", "step-00000012"),
                "three are kept");
    }

    /** Broken off and resumed after each step, on another number of ranks each time. */
    @Test(timeOut = 60_000)
    public void onAnyNumberOfRanks() throws Exception {
        FittedRun expected = new FittedRun(TENSOR_1, parent.resolve("w")).run(5);
        Path folder = parent.resolve("steps");
        FittedRun last = null;
        for (int ranks = 1; ranks <= 4; ranks++) {
            last =
                    new FittedRun(new TrainerKind(ParallelMode.TENSOR, ranks), folder)
                            .with(ranks < 4 ? Break.FIRST_STEP.listener() : FittedRun.At.NEVER);
            if (ranks < 4) {
                FittedRun run = last;
                Assert.assertThrows(BrokenOff.class, () -> run.run(5));
            } else {
                last.run(5);
            }
        }
        Assert.assertEquals(last.metrics.keySet(), expected.metrics.keySet());
        for (String name : expected.weights.keySet()) {
            float[] weights = expected.weights.get(name);
            for (int i = 0; i < weights.length; i++) {
                Assert.assertEquals(last.weights.get(name)[i], weights[i], 1e-5, name);
            }
        }
    }

    /** An epoch without improvement before the end, and one after it. */
    @Test(timeOut = 60_000)
    public void earlyStoppingCountsOn() throws Exception {
        TrainerKind kind = TENSOR_2;
        FittedRun whole = new FittedRun(kind, parent.resolve("whole")).withPatience(2);
        EarlyStoppedException expected =
                Assert.expectThrows(EarlyStoppedException.class, () -> whole.run(5));
        Assert.assertEquals(expected.getStopEpoch(), 3);
        FittedRun broken =
                new FittedRun(kind, parent.resolve("broken"))
                        .withPatience(2)
                        .with(Break.TWO_EPOCHS.listener());
        Assert.assertThrows(BrokenOff.class, () -> broken.run(5));
        FittedRun resumed = new FittedRun(kind, broken.folder()).withPatience(2);
        EarlyStoppedException stopped =
                Assert.expectThrows(EarlyStoppedException.class, () -> resumed.run(6));
        Assert.assertEquals(stopped.getStopEpoch(), expected.getStopEpoch());
        Assert.assertEquals(stopped.getMessage(), expected.getMessage());
    }

    /** The time before the checkpoint is a part of the longest that the training may take. */
    @Test(timeOut = 60_000)
    public void theTimeOfEarlyStoppingGoesOn() throws Exception {
        TrainerKind kind = TENSOR_2;
        Duration limit = Duration.ofMillis(1700);
        FittedRun broken =
                new FittedRun(kind, parent.resolve("time"))
                        .withLimit(limit)
                        .with(
                                new TrainingListenerAdapter() {
                                    private int batches;

                                    @Override
                                    public void onTrainingBatch(Trainer trainer, BatchData data) {
                                        if (batches++ == 1) {
                                            throw new BrokenOff();
                                        }
                                        pause(limit);
                                    }
                                });
        Assert.assertThrows(BrokenOff.class, () -> broken.run(5));
        FittedRun resumed = new FittedRun(kind, broken.folder()).withLimit(limit);
        EarlyStoppedException stopped =
                Assert.expectThrows(EarlyStoppedException.class, () -> resumed.run(6));
        Assert.assertEquals(stopped.getStopEpoch(), 1, stopped.getMessage());
        Assert.assertTrue(stopped.getMessage().contains("ms elapsed"), stopped.getMessage());
    }

    private static void pause(Duration time) {
        Unchecked.run(() -> Thread.sleep(time.toMillis()));
    }

    @Test(timeOut = 60_000)
    public void aTrainingThatIsOverStaysOver() throws Exception {
        TrainerKind kind = TENSOR_2;
        FittedRun whole = new FittedRun(kind, parent.resolve("whole"));
        whole.settings().optEveryEpoch(true);
        whole.run(5);
        FittedRun resumed = new FittedRun(kind, whole.folder());
        resumed.settings().optEveryEpoch(true);
        resumed.run(6).assertSame(whole, "resumed after its end");
    }

    /** Else the model were neither that of the epochs asked for nor, by its losses, of more. */
    @Test(timeOut = 60_000)
    public void fewerEpochsThanTrainedAreRefused() throws Exception {
        TrainerKind kind = TENSOR_2;
        FittedRun two = new FittedRun(kind, parent.resolve("two")).withEpochs(2);
        two.settings().optEveryEpoch(true);
        two.run(5);
        assertRefused(two.folder(), 1, "1 epochs and 4 batches of the next", "ask for 2 epochs or");
        FittedRun broken =
                new FittedRun(kind, parent.resolve("3")).with(Break.MIDDLE_OF_EPOCH.listener());
        Assert.assertThrows(BrokenOff.class, () -> broken.run(5));
        assertRefused(
                broken.folder(),
                1,
                "1 epochs and 2 batches of the next, which is beyond the 1 ",
                "ask for 2 epochs or more, or choose another folder");
        FittedRun exactly = new FittedRun(kind, two.folder()).withEpochs(2);
        exactly.settings().optEveryEpoch(true);
        exactly.run(6).assertSame(two, "as many epochs");
    }

    private static void assertRefused(Path folder, int epochs, String... texts) throws IOException {
        List<String> before = steps(folder);
        FittedRun run = new FittedRun(TENSOR_2, folder).withEpochs(epochs);
        run.settings().optEveryEpoch(true);
        String message =
                Assert.expectThrows(IllegalArgumentException.class, () -> run.run(6)).getMessage();
        Refusals.assertContains(message, texts);
        Assert.assertTrue(message.contains(folder.toString()), message);
        Assert.assertEquals(steps(folder), before);
    }

    private static List<String> steps(Path folder) throws IOException {
        try (var files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString())
                    .filter(name -> !name.startsWith("."))
                    .sorted()
                    .toList();
        }
    }
}
