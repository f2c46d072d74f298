package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A training that tells its listener of no step is not one that is silently saved never. */
public class ForgottenCallsTest {

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("forgotten");
    }

    @AfterMethod
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    /** What is done with an open trainer. */
    private interface Body {
        void run(ParallelTrainer trainer, CheckpointListener checkpoints, ArrayDataset data)
                throws Exception;
    }

    private void train(CheckpointListener.Builder settings, int rows, Body body) throws Exception {
        CheckpointListener checkpoints = settings.setFolder(folder).build();
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(2).build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(2, 3));
                NDArray x = manager.arange(rows * 3f).reshape(rows, 3);
                ArrayDataset data =
                        new ArrayDataset.Builder()
                                .setData(x)
                                .optLabels(x.get(":, :2"))
                                .setSampling(2, true)
                                .build();
                body.run(trainer, checkpoints, data);
            }
        }
    }

    private static CheckpointListener.Builder everyStep() {
        return CheckpointListener.builder().optEverySteps(1);
    }

    private static void assertRefused(Assert.ThrowingRunnable runnable) {
        String message = Assert.expectThrows(IllegalStateException.class, runnable).getMessage();
        Assert.assertTrue(message.contains("train with checkpoints.fit(...)"), message);
    }

    @Test(timeOut = 60_000)
    public void aTrainingSetThatIsNotWrapped() throws Exception {
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) -> {
                    assertRefused(() -> EasyTrain.fit(trainer, 2, data, null));
                    Assert.assertEquals(checkpoints.getStep(), 1); // refused before the second
                });
    }

    @Test(timeOut = 60_000)
    public void anEpochOfOneBatch() throws Exception {
        train(
                CheckpointListener.builder().optEveryMinutes(5),
                2,
                (trainer, checkpoints, data) ->
                        assertRefused(() -> EasyTrain.fit(trainer, 2, data, null)));
    }

    /** The position in the data would be lost: the epoch would begin anew. */
    @Test(timeOut = 60_000)
    public void aRunThatIsResumed() throws Exception {
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) ->
                        EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null));
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) -> {
                    Assert.assertTrue(checkpoints.resume(trainer));
                    assertRefused(() -> EasyTrain.fit(trainer, 1, data, null));
                });
    }

    @Test(timeOut = 60_000)
    public void aSecondFit() throws Exception {
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) -> {
                    EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null);
                    assertRefused(() -> EasyTrain.fit(trainer, 1, data, null));
                });
    }

    /** What is asked for after the close is refused at once, and the trainer has not to wait. */
    @Test(timeOut = 60_000)
    public void aListenerThatIsClosed() throws Exception {
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) -> {
                    EasyTrain.fit(trainer, 1, checkpoints.resumed(data), null);
                    checkpoints.close();
                    assertClosed(checkpoints::save);
                    try (Batch batch = trainer.iterateDataset(data).iterator().next()) {
                        EasyTrain.trainBatch(trainer, batch);
                        trainer.step();
                    }
                    assertClosed(checkpoints::endStep);
                    assertClosed(checkpoints::save);
                });
        Assert.assertEquals(CheckpointFolder.read(folder).getSteps(), List.of(2L, 3L, 4L));
    }

    /** The same without a listener. */
    @Test(timeOut = 60_000)
    public void aStateThatIsClosed() throws Exception {
        Path other = folder.resolve("other");
        train(
                everyStep(),
                8,
                (trainer, checkpoints, data) -> {
                    try (CheckpointFolder opened = CheckpointFolder.open(other)) {
                        TrainingState state = new TrainingState(trainer);
                        Assert.assertTrue(StoppedRun.begin(state, opened).await());
                        state.close();
                        assertClosed(() -> StoppedRun.begin(state, opened));
                    }
                });
    }

    private static void assertClosed(Assert.ThrowingRunnable runnable) {
        String message = Assert.expectThrows(IllegalStateException.class, runnable).getMessage();
        Assert.assertTrue(message.contains("is closed: close it"), message);
    }

    /** What needs to know of no step goes on as it did, and so does a loop that tells of them. */
    @Test(timeOut = 60_000)
    public void othersGoOn() throws Exception {
        train(
                CheckpointListener.builder().optEveryEpoch(true),
                8,
                (trainer, checkpoints, data) -> EasyTrain.fit(trainer, 2, data, null));
        Assert.assertEquals(CheckpointFolder.read(folder).getSteps(), List.of(4L, 8L));
        deleteFolder();
        train(
                everyStep().optKeep(9),
                8,
                (trainer, checkpoints, data) -> {
                    for (Batch batch : trainer.iterateDataset(data)) {
                        try (batch) {
                            EasyTrain.trainBatch(trainer, batch);
                            trainer.step();
                        }
                        checkpoints.endStep();
                    }
                });
        Assert.assertEquals(CheckpointFolder.read(folder).getSteps(), List.of(1L, 2L, 3L, 4L));
    }
}
