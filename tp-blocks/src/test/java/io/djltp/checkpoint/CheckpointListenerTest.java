package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.Batch;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.stream.StreamSupport;

/** What a listener saves and resumes in loops of the user's own, and when it fails. */
public class CheckpointListenerTest {

    private Path parent;
    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        parent = TestFolder.create();
        folder = parent.resolve("run");
    }

    private ListenedTraining training(Consumer<CheckpointListener.Builder> settings) {
        return new ListenedTraining(folder).with(settings);
    }

    private static float backward(ParallelTrainer trainer, long seed) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray data = TrainingRun.random(manager, seed, 4, 5);
            return TrainingRun.backward(trainer, data, TrainingRun.labels(manager, seed, 4, 3));
        }
    }

    /** Two batches a step, and a loop that knows the number of its steps alone. */
    private static void loop(
            ParallelTrainer trainer, CheckpointListener checkpoints, long end, List<Float> losses) {
        while (checkpoints.getStep() < end) {
            long step = checkpoints.getStep();
            losses.add(backward(trainer, 2 * step));
            checkpoints.endStep(); // no step is over
            losses.add(backward(trainer, 2 * step + 1));
            trainer.step();
            checkpoints.endStep();
        }
    }

    private static void loop(ParallelTrainer trainer, CheckpointListener checkpoints, long end) {
        loop(trainer, checkpoints, end, new ArrayList<>());
    }

    private List<Long> steps() throws IOException {
        return CheckpointFolder.read(folder).getSteps();
    }

    /** Losses that go on. */
    private static final class Losses implements Resumable {

        private final List<Float> losses = new ArrayList<>();

        @Override
        public JsonElement saveState() {
            return new JsonPrimitive(losses.toString());
        }

        @Override
        public void restoreState(JsonElement state) {
            String text = state.getAsString();
            for (String number : text.substring(1, text.length() - 1).split(", ")) {
                losses.add(Float.valueOf(number));
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aLoopOfOnesOwnGoesOn() throws Exception {
        Losses whole = new Losses();
        training(settings -> settings.optState("losses", whole).optEverySteps(2).optKeep(10))
                .run(
                        (trainer, checkpoints, data) -> {
                            Assert.assertFalse(checkpoints.resume(trainer));
                            loop(trainer, checkpoints, 6, whole.losses);
                        });
        Assert.assertEquals(steps(), List.of(2L, 4L, 6L));
        folder = parent.resolve("second");
        Losses first = new Losses();
        training(settings -> settings.optState("losses", first).optEverySteps(2))
                .run((trainer, checkpoints, data) -> loop(trainer, checkpoints, 3, first.losses));
        Losses second = new Losses();
        training(settings -> settings.optState("losses", second).optEverySteps(2))
                .seeded(9)
                .run(
                        (trainer, checkpoints, data) -> {
                            Assert.assertTrue(checkpoints.resume(trainer));
                            Assert.assertEquals(checkpoints.getStep(), 2);
                            Assert.assertEquals(second.losses, whole.losses.subList(0, 4));
                            loop(trainer, checkpoints, 6, second.losses);
                        });
        Assert.assertEquals(second.losses, whole.losses);
    }

    /** A damaged one is an error, with the option that goes on from the one that is whole. */
    @Test(timeOut = 60_000)
    public void aDamagedOneIsNotPassedOverUnasked() throws Exception {
        Losses whole = new Losses();
        training(settings -> settings.optState("losses", whole).optEverySteps(1).optKeep(10))
                .run((trainer, checkpoints, data) -> loop(trainer, checkpoints, 4, whole.losses));
        flipLastByte(folder.resolve("step-00000003/part-1-of-2.safetensors"));
        Files.delete(folder.resolve("step-00000004/index.json"));
        String remedy =
                "Of step 2 there is a whole one: optResumeFrom(2), which is --resume-from 2";
        assertNotResumed(settings -> {}, "step-00000004", "index.json is missing", remedy);
        assertNotResumed(settings -> settings.optResumeFrom(3), "part-1-of-2", remedy);
        assertNotResumed(settings -> settings.optResumeFrom(7), "has no checkpoint of step 7");
        Assert.assertEquals(steps(), List.of(1L, 2L, 3L, 4L));
        Losses second = new Losses();
        training(
                        settings ->
                                settings.optState("losses", second)
                                        .optEverySteps(1)
                                        .optKeep(10)
                                        .optResumeFrom(2))
                .run(
                        (trainer, checkpoints, data) -> {
                            Assert.assertTrue(checkpoints.resume(trainer));
                            Assert.assertEquals(steps(), List.of(1L, 2L));
                            loop(trainer, checkpoints, 4, second.losses);
                        });
        Assert.assertEquals(second.losses, whole.losses);
        Assert.assertEquals(steps(), List.of(1L, 2L, 3L, 4L));
        try (var aside = Files.newDirectoryStream(folder, "step-0000000[34].aside-*")) {
            Assert.assertEquals(StreamSupport.stream(aside.spliterator(), false).count(), 2);
        }
        for (long step : steps()) {
            flipLastByte(folder.resolve("step-0000000" + step + "/part-0-of-2.safetensors"));
        }
        assertNotResumed(settings -> {}, "step-00000004", "No older one in", "is whole");
    }

    private void assertNotResumed(Consumer<CheckpointListener.Builder> settings, String... texts) {
        Refusals.expect(CheckpointException.class, () -> training(settings).fit(1), texts);
    }

    private static void flipLastByte(Path file) throws IOException {
        byte[] bytes = Files.readAllBytes(file);
        bytes[bytes.length - 1] ^= 1;
        Files.write(file, bytes);
    }

    @Test(timeOut = 60_000)
    public void aTimeThatIsOverSaves() throws Exception {
        training(settings -> settings.optEveryMinutes(1e-9))
                .run((trainer, checkpoints, data) -> loop(trainer, checkpoints, 2));
        Assert.assertEquals(steps(), List.of(1L, 2L));
    }

    @Test(timeOut = 60_000)
    public void onRequest() throws Exception {
        training(settings -> settings.optWhen(() -> false))
                .run(
                        (trainer, checkpoints, data) -> {
                            loop(trainer, checkpoints, 2);
                            checkpoints.save();
                            checkpoints.save(); // of this step there is one
                            Assert.assertTrue(checkpoints.await());
                        });
        Assert.assertEquals(steps(), List.of(2L));
    }

    /** DJL's loop needs to be told of no step for that. */
    @Test(timeOut = 60_000)
    public void afterEpochs() throws Exception {
        training(settings -> settings.optEveryEpoch(true))
                .run((trainer, checkpoints, data) -> EasyTrain.fit(trainer, 2, data, null));
        Assert.assertEquals(steps(), List.of(4L, 8L));
    }

    @Test(timeOut = 60_000)
    public void aLoopOverDataOfOnesOwn() throws Exception {
        training(settings -> settings.optEverySteps(1).optKeep(9))
                .run(
                        (trainer, checkpoints, data) -> {
                            for (Batch batch : trainer.iterateDataset(data)) {
                                try (batch) {
                                    EasyTrain.trainBatch(trainer, batch);
                                    trainer.step();
                                }
                                checkpoints.endStep();
                            }
                        });
        Assert.assertEquals(steps(), List.of(1L, 2L, 3L, 4L));
    }

    /** A disk that cannot be written to: training goes on, and the next save is tried again. */
    @Test(timeOut = 60_000)
    public void aSaveThatFailsIsTriedAgain() throws Exception {
        training(settings -> settings.optEverySteps(1))
                .run(
                        (trainer, checkpoints, data) -> {
                            loop(trainer, checkpoints, 1);
                            Assert.assertTrue(checkpoints.await());
                            Assert.assertNull(checkpoints.getFailure());
                            Path away = parent.resolve("away");
                            Files.move(folder, away);
                            Files.createFile(folder); // root may write anywhere, but not in a file
                            loop(trainer, checkpoints, 3);
                            Assert.assertFalse(checkpoints.await());
                            String why = checkpoints.getFailure().getMessage();
                            Assert.assertTrue(
                                    why.startsWith("Checkpoints cannot be written to "), why);
                            Files.delete(folder);
                            Files.move(away, folder);
                            checkpoints.save();
                            Assert.assertTrue(checkpoints.await());
                            Assert.assertNull(checkpoints.getFailure());
                            checkpoints.save(); // there is one: nothing is written
                            Assert.assertTrue(checkpoints.await());
                            loop(trainer, checkpoints, 4);
                            Assert.assertTrue(checkpoints.await());
                        });
        Assert.assertEquals(steps(), List.of(1L, 3L, 4L));
    }

    /** The user's own code is a part of what is written: that it throws ends no training. */
    @Test(timeOut = 60_000)
    public void aStateThatThrowsIsASaveThatFails() throws Exception {
        int[] calls = {0};
        Resumable own =
                new Resumable() {
                    @Override
                    public JsonElement saveState() {
                        if (calls[0]++ == 1) {
                            throw new UnsupportedOperationException("not now");
                        }
                        return new JsonPrimitive(calls[0]);
                    }

                    @Override
                    public void restoreState(JsonElement state) {}
                };
        training(settings -> settings.optEverySteps(1).optState("own", own))
                .run(
                        (trainer, checkpoints, data) -> {
                            loop(trainer, checkpoints, 2);
                            Assert.assertFalse(checkpoints.await());
                            Assert.assertEquals(
                                    checkpoints.getFailure().getMessage(),
                                    "saveState() of own has thrown"
                                            + " java.lang.UnsupportedOperationException: not now");
                            loop(trainer, checkpoints, 3);
                            Assert.assertTrue(checkpoints.await());
                            Assert.assertNull(checkpoints.getFailure());
                        });
        Assert.assertEquals(steps(), List.of(1L, 3L));
    }

    /** What is asked for after the close throws at once, and the trainer has not to wait. */
    @Test(timeOut = 60_000)
    public void aListenerThatIsClosed() throws Exception {
        training(settings -> settings.optEverySteps(1))
                .run(
                        (trainer, checkpoints, data) -> {
                            checkpoints.fit(trainer, 1, data, null);
                            checkpoints.close();
                            assertClosed(checkpoints::save);
                            backward(trainer, 1);
                            trainer.step();
                            assertClosed(checkpoints::endStep);
                            assertClosed(checkpoints::save);
                        });
        Assert.assertEquals(steps(), List.of(2L, 3L, 4L));
    }

    private static void assertClosed(Assert.ThrowingRunnable runnable) {
        Refusals.throwsState(runnable, "is closed: close it");
    }
}
