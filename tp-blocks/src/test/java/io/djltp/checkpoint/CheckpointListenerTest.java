package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Utils;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.stream.StreamSupport;

/** What a listener does in loops of the user's own, and what it refuses. */
public class CheckpointListenerTest {

    private Path parent;
    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        parent = Files.createTempDirectory("listener");
        folder = parent.resolve("run");
    }

    @AfterMethod
    public void deleteFolder() {
        Utils.deleteQuietly(parent);
    }

    /** What is done with an open trainer. */
    private interface Body {
        void run(ParallelTrainer trainer, CheckpointListener checkpoints) throws IOException;
    }

    private void train(Consumer<CheckpointListener.Builder> settings, Body body)
            throws IOException {
        CheckpointListener.Builder builder = CheckpointListener.builder().setFolder(folder);
        settings.accept(builder);
        CheckpointListener checkpoints = builder.build();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(3).build());
            DefaultTrainingConfig config = config().addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                trainer.initialize(new Shape(4, 5));
                body.run(trainer, checkpoints);
            }
        }
    }

    private static DefaultTrainingConfig config() {
        return new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                .optOptimizer(Optimizer.adam().build())
                .optDevices(new Device[] {Device.cpu()});
    }

    private static ParallelConfig ranks() {
        return ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
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

    @Test(timeOut = 60_000)
    public void aLoopOfOnesOwnGoesOn() throws IOException {
        Losses whole = new Losses();
        Engine.getInstance().setRandomSeed(4);
        train(
                settings -> settings.optState("losses", whole).optEverySteps(2).optKeep(10),
                (trainer, checkpoints) -> {
                    Assert.assertFalse(checkpoints.resume(trainer));
                    loop(trainer, checkpoints, 6, whole.losses);
                });
        Assert.assertEquals(steps(), List.of(2L, 4L, 6L));
        folder = parent.resolve("second");
        Engine.getInstance().setRandomSeed(4);
        Losses first = new Losses();
        train(
                settings -> settings.optState("losses", first).optEverySteps(2),
                (trainer, checkpoints) -> loop(trainer, checkpoints, 3, first.losses));
        Losses second = new Losses();
        train(
                settings -> settings.optState("losses", second).optEverySteps(2),
                (trainer, checkpoints) -> {
                    Assert.assertTrue(checkpoints.resume(trainer));
                    Assert.assertEquals(checkpoints.getStep(), 2);
                    Assert.assertEquals(second.losses, whole.losses.subList(0, 4));
                    loop(trainer, checkpoints, 6, second.losses);
                });
        Assert.assertEquals(second.losses, whole.losses);
    }

    /** A damaged one is refused, with the option that goes on from the one that is whole. */
    @Test(timeOut = 60_000)
    public void aDamagedOneIsNotPassedOverUnasked() throws IOException {
        Losses whole = new Losses();
        Engine.getInstance().setRandomSeed(4);
        train(
                settings -> settings.optState("losses", whole).optEverySteps(1).optKeep(10),
                (trainer, checkpoints) -> loop(trainer, checkpoints, 4, whole.losses));
        flipLastByte(folder.resolve("step-00000003/part-1-of-2.safetensors"));
        Files.delete(folder.resolve("step-00000004/index.json"));
        String remedy =
                "Of step 2 there is a whole one: optResumeFrom(2), which is --resume-from 2";
        assertNotResumed(settings -> {}, "step-00000004", "index.json is missing", remedy);
        assertNotResumed(settings -> settings.optResumeFrom(3), "part-1-of-2", remedy);
        assertNotResumed(settings -> settings.optResumeFrom(7), "has no checkpoint of step 7");
        Assert.assertEquals(steps(), List.of(1L, 2L, 3L, 4L));
        Losses second = new Losses();
        train(
                settings ->
                        settings.optState("losses", second)
                                .optEverySteps(1)
                                .optKeep(10)
                                .optResumeFrom(2),
                (trainer, checkpoints) -> {
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
        assertRefused(
                CheckpointException.class,
                () -> train(settings, (trainer, checkpoints) -> checkpoints.resume(trainer)),
                texts);
    }

    private static void flipLastByte(Path file) throws IOException {
        byte[] bytes = Files.readAllBytes(file);
        bytes[bytes.length - 1] ^= 1;
        Files.write(file, bytes);
    }

    /** Losses that go on. */
    private static final class Losses implements Resumable {

        private final List<Float> losses = new java.util.ArrayList<>();

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

    private List<Long> steps() throws IOException {
        return CheckpointFolder.read(folder).getSteps();
    }

    @Test(timeOut = 60_000)
    public void aTimeThatIsOverSaves() throws IOException {
        train(
                settings -> settings.optEveryMinutes(1e-9),
                (trainer, checkpoints) -> loop(trainer, checkpoints, 2, new Losses().losses));
        Assert.assertEquals(steps(), List.of(1L, 2L));
    }

    @Test(timeOut = 60_000)
    public void onRequest() throws IOException {
        train(
                settings -> settings.optWhen(() -> false),
                (trainer, checkpoints) -> {
                    loop(trainer, checkpoints, 2, new Losses().losses);
                    checkpoints.save();
                    checkpoints.save(); // of this step there is one
                    Assert.assertTrue(checkpoints.await());
                    Assert.assertEquals(steps(), List.of(2L));
                });
    }

    @Test(timeOut = 60_000)
    public void anotherTrainingIsRefused() throws IOException {
        train(
                settings -> settings.optEverySteps(1).optOptions(Map.of("--seed", "1", "--a", "x")),
                (trainer, checkpoints) -> loop(trainer, checkpoints, 1, new Losses().losses));
        train(
                settings -> settings.optOptions(Map.of("--seed", "2")),
                (trainer, checkpoints) ->
                        assertRefused(
                                IllegalArgumentException.class,
                                () -> checkpoints.resume(trainer),
                                "The checkpoint of step 1 is of another training:",
                                "--seed was 1 and is 2",
                                "--a was x and is not set"));
    }

    @Test(timeOut = 60_000)
    public void checkpointsOfAnotherRunAreNotMixed() throws IOException {
        Body loop = (trainer, checkpoints) -> loop(trainer, checkpoints, 1, new Losses().losses);
        train(settings -> settings.optEverySteps(1), loop);
        assertRefused(
                IllegalStateException.class,
                () -> train(settings -> settings.optEverySteps(1), loop),
                "has checkpoints of another run, the newest of step 1");
        Assert.assertEquals(steps(), List.of(1L));
    }

    @Test(timeOut = 60_000)
    public void aFolderInUseIsRefused() throws IOException {
        try (CheckpointFolder inUse = CheckpointFolder.open(folder)) {
            Assert.assertEquals(inUse.getSteps(), List.of());
            assertRefused(
                    CheckpointException.class,
                    () -> train(s -> {}, (trainer, checkpoints) -> checkpoints.resume(trainer)),
                    folder.toString());
        }
    }

    @Test(timeOut = 60_000)
    public void itHasToBeTheLastListener() {
        CheckpointListener checkpoints = CheckpointListener.builder().setFolder(folder).build();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(3).build());
            DefaultTrainingConfig config =
                    config().addTrainingListeners(checkpoints, new EpochTrainingListener());
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                trainer.initialize(new Shape(4, 5));
                assertRefused(
                        IllegalArgumentException.class,
                        () -> checkpoints.resume(trainer),
                        "add it after ai.djl.training.listener.EpochTrainingListener");
            }
        }
    }

    /** No order satisfies two. */
    @Test(timeOut = 60_000)
    public void thereIsOneOnATrainer() {
        CheckpointListener first = CheckpointListener.builder().setFolder(folder).build();
        CheckpointListener second = CheckpointListener.builder().setFolder(folder).build();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(3).build());
            DefaultTrainingConfig config = config().addTrainingListeners(first, second);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                trainer.initialize(new Shape(4, 5));
                for (CheckpointListener each : List.of(first, second)) {
                    assertRefused(
                            IllegalArgumentException.class,
                            () -> each.resume(trainer),
                            "A trainer has one CheckpointListener, and this one has several");
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void onlyAParallelTrainerIsSaved() {
        CheckpointListener checkpoints = CheckpointListener.builder().setFolder(folder).build();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(3).build());
            assertRefused(
                    IllegalArgumentException.class,
                    () -> {
                        try (Trainer trainer =
                                model.newTrainer(config().addTrainingListeners(checkpoints))) {
                            trainer.initialize(new Shape(4, 5));
                        }
                    },
                    "state of a ParallelTrainer");
        }
    }

    /** A disk that cannot be written to: training goes on, and the next save is tried again. */
    @Test(timeOut = 60_000)
    public void aSaveThatFailsIsTriedAgain() throws IOException {
        train(
                settings -> settings.optEverySteps(1),
                (trainer, checkpoints) -> {
                    loop(trainer, checkpoints, 1, new Losses().losses);
                    Assert.assertTrue(checkpoints.await());
                    Assert.assertNull(checkpoints.getFailure());
                    Path away = parent.resolve("away");
                    Files.move(folder, away);
                    Files.createFile(folder); // root may write anywhere, but not in a file
                    loop(trainer, checkpoints, 3, new Losses().losses);
                    Assert.assertFalse(checkpoints.await());
                    String why = checkpoints.getFailure().getMessage();
                    Assert.assertTrue(why.startsWith("Checkpoints cannot be written to "), why);
                    Files.delete(folder);
                    Files.move(away, folder);
                    loop(trainer, checkpoints, 4, new Losses().losses);
                    Assert.assertTrue(checkpoints.await());
                });
        Assert.assertEquals(steps(), List.of(1L, 4L));
    }

    /** The user's own code is a part of what is written: that it throws ends no training. */
    @Test(timeOut = 60_000)
    public void aStateThatThrowsIsASaveThatFails() throws IOException {
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
        train(
                settings -> settings.optEverySteps(1).optState("own", own),
                (trainer, checkpoints) -> {
                    loop(trainer, checkpoints, 2, new Losses().losses);
                    Assert.assertFalse(checkpoints.await());
                    Assert.assertEquals(
                            checkpoints.getFailure().getMessage(),
                            "saveState() of own has thrown"
                                    + " java.lang.UnsupportedOperationException: not now");
                    loop(trainer, checkpoints, 3, new Losses().losses);
                    Assert.assertTrue(checkpoints.await());
                    Assert.assertNull(checkpoints.getFailure());
                });
        Assert.assertEquals(steps(), List.of(1L, 3L));
    }

    private static void assertRefused(
            Class<? extends Exception> type, Assert.ThrowingRunnable runnable, String... texts) {
        Exception refused = Assert.expectThrows(type, runnable);
        for (String text : texts) {
            Assert.assertTrue(refused.getMessage().contains(text), refused.getMessage());
        }
    }

    /** Room was made: the same step is saved without another one of training. */
    @Test(timeOut = 60_000)
    public void theStepOfAFailedSaveCanBeSaved() throws IOException {
        train(
                settings -> settings.optEverySteps(1),
                (trainer, checkpoints) -> {
                    loop(trainer, checkpoints, 1, new Losses().losses);
                    Assert.assertTrue(checkpoints.await());
                    Path away = parent.resolve("away");
                    Files.move(folder, away);
                    Files.createFile(folder);
                    loop(trainer, checkpoints, 2, new Losses().losses);
                    Assert.assertFalse(checkpoints.await());
                    Files.delete(folder);
                    Files.move(away, folder);
                    checkpoints.save();
                    Assert.assertTrue(checkpoints.await());
                    Assert.assertNull(checkpoints.getFailure());
                    checkpoints.save(); // there is one: nothing is written
                    Assert.assertTrue(checkpoints.await());
                });
        Assert.assertEquals(steps(), List.of(1L, 2L));
    }

    @Test
    public void stepsAreThoseOfATrainer() {
        CheckpointListener alone = CheckpointListener.builder().setFolder(folder).build();
        assertRefused(IllegalStateException.class, alone::getStep, "has no trainer yet");
    }
}
