package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Utils;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;

/** A resume that is refused has changed nothing, and no other run goes on among its checkpoints. */
public class RefusedResumeTest {

    private Path folder;

    @BeforeMethod
    public void saveTwoSteps() throws Exception {
        folder = Files.createTempDirectory("refused");
        train(
                3,
                config ->
                        config.addEvaluator(new VocabParallelAccuracy())
                                .addTrainingListeners(new Counter()),
                (trainer, checkpoints, data) ->
                        EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null));
    }

    @AfterMethod(alwaysRun = true)
    public void remove() {
        Utils.deleteQuietly(folder);
    }

    /** A listener that counts batches. */
    private static final class Counter extends TrainingListenerAdapter implements Resumable {

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
    private static final class Other extends TrainingListenerAdapter implements Resumable {

        @Override
        public JsonElement saveState() {
            return new JsonPrimitive(1);
        }

        @Override
        public void restoreState(JsonElement state) {}
    }

    /** What is done with an open trainer. */
    private interface Body {
        void run(ParallelTrainer trainer, CheckpointListener checkpoints, ArrayDataset data)
                throws Exception;
    }

    private void train(int seed, Consumer<DefaultTrainingConfig> settings, Body body)
            throws Exception {
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder).optEverySteps(1).build();
        Engine.getInstance().setRandomSeed(seed);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(Linear.builder().setUnits(3).build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                            .optOptimizer(Optimizer.adam().build())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(TrainingListener.Defaults.basic());
            settings.accept(config);
            config.addTrainingListeners(checkpoints);
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(TrainingRun.random(manager, 1, 8, 5))
                            .optLabels(TrainingRun.labels(manager, 1, 8, 3))
                            .setSampling(4, true)
                            .build();
            ParallelConfig ranks =
                    ParallelConfig.builder().setMode(ParallelMode.DATA).setRanks(2).build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.setMetrics(new Metrics());
                trainer.initialize(new Shape(4, 5));
                body.run(trainer, checkpoints, data);
            }
        }
    }

    private static float[] values(ParallelTrainer trainer) {
        try (NDArray prediction =
                trainer.evaluate(new NDList(TrainingRun.random(trainer.getManager(), 9, 4, 5)))
                        .singletonOrThrow()) {
            return prediction.toFloatArray();
        }
    }

    @DataProvider
    public Object[][] others() {
        Consumer<DefaultTrainingConfig> accuracy =
                config -> config.addEvaluator(new VocabParallelAccuracy());
        return new Object[][] {
            {
                "no state of io.djltp.checkpoint.RefusedResumeTest$Other",
                accuracy.andThen(config -> config.addTrainingListeners(new Other()))
            },
            {
                "Two listeners of " + Counter.class.getName() + " have a state",
                accuracy.andThen(
                        config -> config.addTrainingListeners(new Counter(), new Counter()))
            }
        };
    }

    @Test(dataProvider = "others", timeOut = 60_000)
    public void nothingIsChanged(String message, Consumer<DefaultTrainingConfig> settings)
            throws Exception {
        train(
                8,
                settings,
                (trainer, checkpoints, data) -> {
                    float[] before = values(trainer);
                    Exception refused =
                            Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () -> checkpoints.resume(trainer));
                    Assert.assertTrue(refused.getMessage().contains(message), refused.getMessage());
                    Assert.assertEquals(trainer.getState().getStep(), 0);
                    Assert.assertTrue(Arrays.equals(values(trainer), before));
                    assertNotMixed(trainer, checkpoints, data);
                });
    }

    /** Who catches the error and trains all the same begins a run in a folder that is another's. */
    private void assertNotMixed(
            ParallelTrainer trainer, CheckpointListener checkpoints, ArrayDataset data)
            throws IOException {
        for (int i = 0; i < 2; i++) {
            Exception refused =
                    Assert.expectThrows(
                            IllegalStateException.class,
                            () -> EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null));
            Assert.assertTrue(
                    refused.getMessage().contains("has checkpoints of another run"),
                    refused.getMessage());
        }
        Assert.assertEquals(CheckpointFolder.read(folder).getSteps(), List.of(1L, 2L));
    }

    /** What the user's own code throws comes last: all else is that of the checkpoint by then. */
    @Test(timeOut = 60_000)
    public void aStateThatCannotBeRestored() throws Exception {
        train(
                8,
                config ->
                        config.addEvaluator(new VocabParallelAccuracy())
                                .addTrainingListeners(new Counter()),
                (trainer, checkpoints, data) -> {
                    Exception refused =
                            Assert.expectThrows(
                                    IllegalStateException.class, () -> checkpoints.resume(trainer));
                    Assert.assertEquals(refused.getMessage(), "nothing is restored");
                    Assert.assertEquals(trainer.getState().getStep(), 2);
                    assertNotMixed(trainer, checkpoints, data);
                });
    }
}
