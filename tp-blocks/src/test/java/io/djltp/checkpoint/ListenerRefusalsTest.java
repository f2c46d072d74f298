package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.newHead;

import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;

import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * What a listener cannot do is an error with its remedy; a resume that throws has changed nothing,
 * and no other run goes on among its checkpoints.
 */
public class ListenerRefusalsTest extends TestFolder {

    private ListenedTraining training() {
        return new ListenedTraining(folder);
    }

    private CheckpointListener.Builder builder() {
        return CheckpointListener.builder().setFolder(folder);
    }

    @DataProvider
    public Object[][] settings() {
        return new Object[][] {
            setting(
                    all -> all.optEverySteps(0),
                    "The steps between checkpoints must be 1 or more, not 0"),
            setting(
                    all -> all.optEveryMinutes(-0.5),
                    "The minutes between checkpoints must be above 0, not -0.5"),
            setting(
                    all -> all.optEveryMinutes(Double.NaN),
                    "The minutes between checkpoints must be above 0, not NaN"),
            setting(all -> all.optKeep(0), "The checkpoints to keep must be 1 or more, not 0"),
            setting(
                    all -> all.setFolder(null).build(),
                    "A CheckpointListener needs a folder: setFolder(path)")
        };
    }

    private static Object[] setting(Consumer<CheckpointListener.Builder> set, String message) {
        return new Object[] {set, message};
    }

    @Test(dataProvider = "settings")
    public void aSettingThatCannotBe(Consumer<CheckpointListener.Builder> set, String message) {
        Refusals.throwsArgument(() -> set.accept(builder()), message);
    }

    /** What the processes of a job compare: a set of Java's has another order in each. */
    @Test
    public void theOrderOfSignalsDoesNotMatter() {
        Map<String, String> settings = builder().optSignals("TERM", "INT").settings();
        Assert.assertEquals(builder().optSignals("INT", "TERM").settings(), settings);
        Assert.assertNotEquals(builder().optSignals("INT", "USR1").settings(), settings);
    }

    @Test(timeOut = 60_000)
    public void whatIsAroundAListener() throws Exception {
        Refusals.throwsState(builder().build()::getStep, "has no trainer yet");
        CheckpointListener other = builder().build();
        training()
                .adding(config -> config.addTrainingListeners(other))
                .run(
                        (trainer, checkpoints, data) -> {
                            for (CheckpointListener each : List.of(other, checkpoints)) {
                                Refusals.throwsArgument(
                                        () -> each.resume(trainer),
                                        "A trainer has one CheckpointListener, and this one has");
                            }
                        });
        CheckpointListener first = builder().build();
        DefaultTrainingConfig config =
                Configs.of(Loss.l2Loss()).addTrainingListeners(first, new EpochTrainingListener());
        try (Model model = Blocks.model(Linear.builder().setUnits(3).build())) {
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, ParallelConfig.tensor(2))) {
                trainer.initialize(new Shape(4, 5));
                Refusals.throwsArgument(
                        () -> first.resume(trainer),
                        "add it after ai.djl.training.listener.EpochTrainingListener");
            }
            Refusals.throwsArgument(
                    () -> {
                        try (Trainer plain = model.newTrainer(config)) {
                            plain.initialize(new Shape(4, 5));
                        }
                    },
                    "state of a ParallelTrainer");
        }
    }

    /** A training that tells its listener of no step is not one that is silently saved never. */
    @Test(timeOut = 60_000)
    public void stepsThatItIsNotToldOf() throws Exception {
        training()
                .run(
                        (trainer, checkpoints, data) -> {
                            assertNotTold(() -> EasyTrain.fit(trainer, 2, data, null));
                            Assert.assertEquals(checkpoints.getStep(), 1); // before the second
                        });
        training() // an epoch of one batch
                .ofRows(ListenedTraining.BATCH)
                .with(settings -> settings.optEveryMinutes(5))
                .run(
                        (trainer, checkpoints, data) ->
                                assertNotTold(() -> EasyTrain.fit(trainer, 2, data, null)));
        training()
                .run(
                        (trainer, checkpoints, data) -> {
                            checkpoints.fit(trainer, 1, data, null);
                            assertNotTold(() -> EasyTrain.fit(trainer, 1, data, null));
                        });
        training() // the position in the data would be lost: the epoch would begin anew
                .run(
                        (trainer, checkpoints, data) -> {
                            Assert.assertTrue(checkpoints.resume(trainer));
                            assertNotTold(() -> EasyTrain.fit(trainer, 1, data, null));
                        });
    }

    private static void assertNotTold(ThrowingRunnable run) {
        Refusals.throwsState(run, "train with checkpoints.fit(...)");
    }

    @Test(timeOut = 60_000)
    public void aFolderOfAnotherRun() throws Exception {
        try (CheckpointFolder inUse = CheckpointFolder.open(folder)) {
            Assert.assertEquals(inUse.getSteps(), List.of());
            Refusals.expect(CheckpointException.class, () -> training().fit(1), folder.toString());
        }
        training().fit(1);
        training().run((trainer, checkpoints, data) -> assertNotMixed(checkpoints));
    }

    /** Who trains all the same begins a run in a folder that is another's. */
    private static void assertNotMixed(CheckpointListener checkpoints) {
        for (int i = 0; i < 2; i++) {
            Refusals.throwsState(
                    checkpoints::endStep, "has checkpoints of another run, the newest of step 4");
        }
    }

    /** A listener that has a state. */
    private static class Counter extends TrainingListenerAdapter implements Resumable {

        @Override
        public JsonElement saveState() {
            return new JsonPrimitive(1);
        }

        @Override
        public void restoreState(JsonElement state) {
            throw new IllegalStateException("nothing is restored");
        }
    }

    /** A listener that the run before does not have. */
    private static final class Other extends Counter {}

    private void trainWith(Consumer<CheckpointListener.Builder> more) throws Exception {
        training()
                .with(settings -> more.accept(settings.optEverySteps(1)))
                .adding(config -> config.addTrainingListeners(new Counter()))
                .fit(1);
    }

    /** The listeners and the settings of the run after, and why it is another training. */
    @DataProvider
    public Object[][] others() {
        String name = ListenerRefusalsTest.class.getName();
        return new Object[][] {
            {
                List.of(new Counter(), new Other()),
                "1",
                "The checkpoint has no state of " + name + "$Other, but of [" + name + "$Counter]"
            },
            {
                List.of(new Counter(), new Counter()),
                "1",
                "Two listeners of " + name + "$Counter have a state"
            },
            {
                List.of(new Counter()),
                "2",
                "The checkpoint of step 4 is of another training: --a was x and is not set, --seed"
                        + " was 1 and is 2."
            }
        };
    }

    @Test(dataProvider = "others", timeOut = 60_000)
    public void anotherTraining(List<Counter> listeners, String seed, String why) throws Exception {
        trainWith(settings -> settings.optOptions(Map.of("--seed", "1", "--a", "x")));
        Map<String, String> options =
                seed.equals("1") ? Map.of("--seed", seed, "--a", "x") : Map.of("--seed", seed);
        training()
                .seeded(8)
                .with(settings -> settings.optEverySteps(1).optOptions(options))
                .adding(config -> listeners.forEach(config::addTrainingListeners))
                .run(
                        (trainer, checkpoints, data) -> {
                            Object before = ListenedTraining.held(trainer, 1);
                            Refusals.throwsArgument(() -> checkpoints.resume(trainer), why);
                            assertUnchanged(trainer, before);
                            assertNotMixed(checkpoints);
                        });
    }

    private static void assertUnchanged(ParallelTrainer trainer, Object before) {
        Assert.assertEquals(trainer.getState().getStep(), 0);
        Assert.assertEquals(ListenedTraining.held(trainer, 1), before);
    }

    /** What the user's own code throws comes last: all else is that of the checkpoint by then. */
    @Test(timeOut = 60_000)
    public void aStateThatCannotBeRestored() throws Exception {
        trainWith(settings -> {});
        training()
                .adding(config -> config.addTrainingListeners(new Counter()))
                .run(
                        (trainer, checkpoints, data) -> {
                            Refusals.throwsState(
                                    () -> checkpoints.resume(trainer), "nothing is restored");
                            Assert.assertEquals(trainer.getState().getStep(), 4);
                            assertNotMixed(checkpoints);
                        });
    }

    /**
     * An index that is JSON, with its right checksum, and lacks a member or has one of another
     * kind.
     */
    @Test(timeOut = 120_000)
    public void brokenValues() throws Exception {
        ListenedTraining broken =
                training()
                        .of(
                                ParallelMode.MIXED,
                                () ->
                                        Blocks.sequence(
                                                ParallelDropout.builder().optRate(0.3f).build(),
                                                newHead(ListenedTraining.CLASSES)
                                                        .optBatchShardedInput(true)
                                                        .build()));
        broken.fit(1);
        Path step = folder.resolve("step-00000004");
        String whole = Files.readString(step.resolve(CheckpointIndex.FILE));
        broken.run(
                (trainer, checkpoints, data) -> {
                    Object before = ListenedTraining.held(trainer, 1);
                    int count = 0;
                    for (String path : paths(whole)) {
                        JsonObject removed = index(whole);
                        parent(removed, path).remove(path.split("\\.")[1]);
                        assertBroken(step, removed, checkpoints, trainer, path, "is missing");
                        JsonObject text = index(whole);
                        if (!path.equals("trainer.optimizer")) { // which is a text
                            parent(text, path).addProperty(path.split("\\.")[1], "hello");
                            assertBroken(step, text, checkpoints, trainer, path, "not what");
                        }
                        assertUnchanged(trainer, before);
                        count++;
                    }
                    Assert.assertTrue(count > 14, "" + count);
                    JsonObject many = index(whole); // a number that no training can have
                    parent(many, "training.data")
                            .getAsJsonObject("data")
                            .addProperty("batches", 1_000_000_000_000_000_000L);
                    many.getAsJsonObject("values")
                            .getAsJsonObject("training")
                            .getAsJsonObject("data")
                            .addProperty("begun", true);
                    Checkpoints.writeIndex(step, many.toString());
                    Assert.assertTrue(checkpoints.resume(trainer)); // the trainer is as good as new
                    Assert.assertEquals(checkpoints.getStep(), 4);
                    Refusals.throwsArgument(
                            () -> EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null),
                            "the training set has 4");
                });
    }

    private static void assertBroken(
            Path step,
            JsonObject index,
            CheckpointListener checkpoints,
            ParallelTrainer trainer,
            String path,
            String what)
            throws IOException {
        Checkpoints.writeIndex(step, index.toString());
        Refusals.expect(
                CheckpointException.class,
                () -> checkpoints.resume(trainer),
                "index.json cannot be used: values." + path.split("\\.")[0],
                what,
                ". Of step 3 there is a whole one");
    }

    private static JsonObject index(String whole) {
        return JsonParser.parseString(whole).getAsJsonObject();
    }

    private static JsonObject parent(JsonObject index, String path) {
        return index.getAsJsonObject("values").getAsJsonObject(path.split("\\.")[0]);
    }

    /** Returns the paths of the members of trainer and training. */
    private static List<String> paths(String whole) {
        List<String> paths = new ArrayList<>();
        for (String name : List.of("trainer", "training")) {
            parent(index(whole), name).keySet().forEach(each -> paths.add(name + "." + each));
        }
        return paths;
    }
}
