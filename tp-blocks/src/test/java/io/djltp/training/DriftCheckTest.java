package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;

/** Replicas that drift apart are found without being asked for. */
public class DriftCheckTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 9;

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("drift");
    }

    @AfterMethod
    public void deleteFolder() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(folder);
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.MIXED}, {ParallelMode.DATA}};
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void theStepsOfTheCheck(ParallelMode mode) {
        for (int step = 1; step <= 9; step++) {
            int drifting = step;
            long found = step == 3 ? 4 : step > 4 && step <= 8 ? 8 : step;
            try (Model model = model();
                    ParallelTrainer trainer = open(model, config(mode).build())) {
                for (int i = 1; i < found; i++) {
                    step(trainer, i == drifting);
                }
                if (step == 9) {
                    continue; // the next is the 16th
                }
                boolean last = drifting == found;
                expect(RankFailedException.class, () -> step(trainer, last), "after step " + found);
            }
        }
    }

    private static void assertMessage(RankFailedException e, String step) {
        assertTrue(e.getMessage().contains(step + " rank 1 has other"), e.getMessage());
        assertTrue(e.getMessage().contains("weight (5, 5)"), e.getMessage());
    }

    /** Ranks 1 and 3 have the same shard of the head, and other rows of the batch. */
    @Test(timeOut = 60_000)
    public void theShardsOfAMesh() {
        DeviceMesh mesh = DeviceMesh.of("data", 2, "tensor", 2);
        try (Model model = model();
                ParallelTrainer trainer =
                        open(model, ParallelConfig.builder().setMesh(mesh).build())) {
            step(trainer, false);
            step(trainer, false);
            step(trainer, false);
            Parameter head = model.getBlock().getParameters().valueAt(2);
            change(trainer, 3, head);
            expect(
                    RankFailedException.class,
                    () -> step(trainer, false),
                    "after step 4 rank 3 has",
                    "weight (9, 5)",
                    "than rank 1");
        }
    }

    /** The model has the weights of rank 0 in spite of it. */
    @Test(dataProvider = "modes", timeOut = 60_000)
    public void whenTheTrainerIsClosed(ParallelMode mode) {
        try (Model model = model()) {
            ParallelTrainer trainer = open(model, config(mode).build());
            step(trainer, false);
            step(trainer, false);
            step(trainer, true);
            expect(RankFailedException.class, trainer::close, "after step 3");
            for (float[] weights : weights(model.getBlock())) {
                for (float weight : weights) {
                    assertTrue(Float.isFinite(weight));
                }
            }
            trainer.close(); // which does nothing more
        }
    }

    /** What went wrong first is thrown, with what went wrong after it. */
    @Test(timeOut = 60_000)
    public void whenMoreGoesWrongInClose() {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
        config.optDevices(new Device[] {Device.cpu()});
        config.addTrainingListeners(
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingEnd(Trainer trainer) {
                        throw new UnsupportedOperationException("of a listener");
                    }
                });
        try (Model model = model()) {
            ParallelConfig ranks = config(ParallelMode.TENSOR).build();
            ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
            trainer.initialize(new Shape(ROWS, FEATURES));
            step(trainer, false);
            step(trainer, false);
            step(trainer, true);
            RankFailedException e =
                    expect(RankFailedException.class, trainer::close, "after step 3");
            assertEquals(e.getSuppressed().length, 1);
            assertEquals(e.getSuppressed()[0].getMessage(), "of a listener");
        }
    }

    /** And the file from before stays. */
    @Test(timeOut = 60_000)
    public void beforeASave() throws IOException {
        try (Model model = model();
                ParallelTrainer trainer = open(model, config(ParallelMode.TENSOR).build())) {
            model.setProperty("Epoch", "0");
            step(trainer, false);
            step(trainer, false);
            trainer.save(folder, "net");
            byte[] saved = Files.readAllBytes(folder.resolve("net-0000.params"));
            step(trainer, true);
            expect(RankFailedException.class, () -> trainer.save(folder, "net"), "after step 3");
            assertEquals(Files.readAllBytes(folder.resolve("net-0000.params")), saved);
            try (Stream<Path> files = Files.list(folder)) {
                assertEquals(files.count(), 1);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void beforeAPlainSave() {
        try (Model model = model();
                ParallelTrainer trainer = open(model, config(ParallelMode.MIXED).build())) {
            step(trainer, false);
            step(trainer, false);
            step(trainer, true);
            expect(RankFailedException.class, () -> model.save(folder, "net"), "after step 3");
        }
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void switchedOff(ParallelMode mode) throws IOException {
        try (Model model = model();
                ParallelTrainer trainer = open(model, config(mode).optDriftCheck(0).build())) {
            for (int i = 0; i < 5; i++) {
                step(trainer, i == 0);
            }
            model.save(folder, "net");
        }
    }

    @Test(timeOut = 60_000)
    public void everySoManySteps() {
        try (Model model = model();
                ParallelTrainer trainer =
                        open(model, config(ParallelMode.TENSOR).optDriftCheck(3).build())) {
            step(trainer, true);
            step(trainer, false);
            expect(RankFailedException.class, () -> step(trainer, false), "after step 3");
        }
    }

    /** A file that takes the place of another is numbered as DJL numbers it. */
    @Test(timeOut = 60_000)
    public void savedFilesAreNumberedAsByDjl() throws Exception {
        try (Model model = model();
                ParallelTrainer trainer = open(model, config(ParallelMode.TENSOR).build())) {
            step(trainer, false);
            model.save(folder, "net");
            trainer.save(folder, "net");
            trainer.getModel().save(folder, "net");
            byte[] first = Files.readAllBytes(folder.resolve("net-0000.params"));
            for (int i = 1; i <= 2; i++) {
                byte[] next = Files.readAllBytes(folder.resolve("net-000" + i + ".params"));
                assertEquals(next, first);
            }
            trainer.save(folder, null);
            assertTrue(Files.exists(folder.resolve("model-0000.params")));
        }
    }

    private static Model model() {
        Engine.getInstance().setRandomSeed(4);
        Model model = Model.newInstance("model", Device.cpu());
        model.setBlock(sequence(linear(FEATURES), head(CLASSES)));
        return model;
    }

    private static ParallelConfig.Builder config(ParallelMode mode) {
        return ParallelConfig.builder().setMode(mode).setRanks(2);
    }

    private static ParallelTrainer open(Model model, ParallelConfig ranks) {
        ParallelTrainer trainer =
                new ParallelTrainer(model, Configs.of(new VocabParallelCrossEntropyLoss()), ranks);
        trainer.initialize(new Shape(ROWS, FEATURES));
        return trainer;
    }

    private static void change(ParallelTrainer trainer, int rank, Parameter weight) {
        NDArray replica = trainer.getParameterStore(rank).getValue(weight, null, true);
        boolean[] done = new boolean[1];
        trainer.getRanks()
                .run(
                        context -> {
                            if (context.getRank() == rank) {
                                replica.get("0, 0:1").stopGradient().addi(1e-3f);
                                done[0] = true;
                            }
                            return null;
                        });
        assertTrue(done[0]);
    }

    private static void step(ParallelTrainer trainer, boolean drifting) {
        if (drifting) {
            change(trainer, 1, trainer.getModel().getBlock().getParameters().valueAt(0));
        }
        try (NDManager manager = NDManager.newBaseManager()) {
            backward(
                    trainer, random(manager, 4, ROWS, FEATURES), labels(manager, 4, ROWS, CLASSES));
            trainer.step();
        }
    }
}
