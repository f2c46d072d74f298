package io.djltp.training;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.CutNetwork;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.Ranks;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** Replicas that drift apart are found without being asked for. */
public class DriftCheckTest extends TestFolder {

    private static final Network.Batches BATCHES = Network.batches("6x5", "6:9");
    private static final List<TrainerKind> MODES = List.of(TENSOR_2, MIXED_2, DATA_2);

    @DataProvider
    public Object[][] modes() {
        return TrainerKind.rows(MODES);
    }

    private static Model model() {
        Engine.getInstance().setRandomSeed(4);
        Model model = Model.newInstance("model", Device.cpu());
        model.setBlock(sequence(linear(5), head(9)));
        return model;
    }

    private static ParallelTrainer open(Model model, ParallelConfig ranks) {
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
        ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
        trainer.initialize(BATCHES.shapes());
        return trainer;
    }

    private static ParallelConfig every(TrainerKind kind, int steps) {
        return Ranks.builder(kind.mode(), 2).optDriftCheck(steps).build();
    }

    private static void step(ParallelTrainer trainer, boolean drifting) {
        if (drifting) {
            change(trainer, 1, 0);
        }
        steps(trainer, new ArrayList<>(), BATCHES, 4, 5);
    }

    /** Makes three steps, of which the last drifts. */
    private static void drift(ParallelTrainer trainer) {
        for (int i = 1; i <= 3; i++) {
            step(trainer, i == 3);
        }
    }

    private static void change(ParallelTrainer trainer, int rank, int parameter) {
        NDArray replica = held(trainer, rank, parameter);
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

    private static RankFailedException found(ThrowingRunnable call, String... parts) {
        return expect(RankFailedException.class, call, parts);
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void theStepsOfTheCheck(TrainerKind kind) {
        for (int step = 1; step <= 9; step++) {
            int drifting = step;
            long found = step == 3 ? 4 : step > 4 && step <= 8 ? 8 : step;
            try (Model model = model();
                    ParallelTrainer trainer = open(model, kind.config())) {
                for (int i = 1; i < found; i++) {
                    step(trainer, i == drifting);
                }
                if (step < 9) { // the next is the 16th
                    found(() -> step(trainer, drifting == found), "after step " + found);
                }
            }
        }
        try (Model model = model();
                ParallelTrainer trainer = open(model, every(kind, 3))) {
            step(trainer, true);
            step(trainer, false);
            found(() -> step(trainer, false), "after step 3");
        }
    }

    /** Ranks 1 and 3 have the same shard of the head, and other rows of the batch. */
    @Test(timeOut = 60_000)
    public void theShardsOfAMesh() {
        try (Model model = model();
                ParallelTrainer trainer = open(model, MESH_2X2.config())) {
            steps(trainer, new ArrayList<>(), BATCHES, 0, 3);
            change(trainer, 3, 2);
            found(
                    () -> step(trainer, false),
                    "after step 4 rank 3 has .. weight (9, 5) .. than rank 1");
        }
    }

    /** A rank that has changed what another one has too. */
    @Test(timeOut = 60_000)
    public void theRangesThatRanksShare() {
        Network.Batches batches = Network.batches("6x7", "6x5");
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(CutNetwork.STACKED_QUERIES.create(4));
            try (ParallelTrainer trainer =
                    new ParallelTrainer(
                            model,
                            Configs.of(new HalfSquareLoss()),
                            Ranks.builder(ParallelMode.TENSOR, 4).optDriftCheck(1).build())) {
                trainer.initialize(batches.shapes());
                steps(trainer, new ArrayList<>(), batches, 0, 2);
                NDArray weight = held(trainer, 3, 0);
                trainer.getRanks()
                        .run(
                                context ->
                                        context.getRank() == 3 // the key head's rows
                                                ? weight.get("5:6, 0:1").stopGradient().addi(1e-3f)
                                                : null);
                found(
                        () -> steps(trainer, new ArrayList<>(), batches, 2, 3),
                        "rank 3 has other .. 20 to 24 of axis 0 .. rank 2");
            }
        }
    }

    /** The model has the weights of rank 0 in spite of it. */
    @Test(dataProvider = "modes", timeOut = 60_000)
    public void whenTheTrainerIsClosed(TrainerKind kind) {
        try (Model model = model()) {
            ParallelTrainer trainer = open(model, kind.config());
            drift(trainer);
            found(trainer::close, "after step 3");
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
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
        config.addTrainingListeners(
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingEnd(Trainer trainer) {
                        throw new UnsupportedOperationException("of a listener");
                    }
                });
        try (Model model = model()) {
            ParallelTrainer trainer = new ParallelTrainer(model, config, TENSOR_2.config());
            trainer.initialize(BATCHES.shapes());
            drift(trainer);
            RankFailedException e = found(trainer::close, "after step 3");
            assertEquals(e.getSuppressed().length, 1);
            assertEquals(e.getSuppressed()[0].getMessage(), "of a listener");
        }
    }

    /** And the file from before stays. */
    @Test(timeOut = 60_000)
    public void beforeASave() throws IOException {
        try (Model model = model();
                ParallelTrainer trainer = open(model, TENSOR_2.config())) {
            model.setProperty("Epoch", "0");
            step(trainer, false);
            step(trainer, false);
            trainer.save(folder, "net");
            byte[] saved = Files.readAllBytes(folder.resolve("net-0000.params"));
            step(trainer, true);
            found(() -> trainer.save(folder, "net"), "after step 3");
            assertEquals(Files.readAllBytes(folder.resolve("net-0000.params")), saved);
            try (Stream<Path> files = Files.list(folder)) {
                assertEquals(files.count(), 1);
            }
        }
        try (Model model = model();
                ParallelTrainer trainer = open(model, MIXED_2.config())) {
            drift(trainer);
            found(() -> model.save(folder, "net"), "after step 3");
        }
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void switchedOff(TrainerKind kind) throws IOException {
        try (Model model = model();
                ParallelTrainer trainer = open(model, every(kind, 0))) {
            for (int i = 0; i < 5; i++) {
                step(trainer, i == 0);
            }
            model.save(folder, "net");
        }
    }

    /** A file that takes the place of another is numbered as DJL numbers it. */
    @Test(timeOut = 60_000)
    public void savedFilesAreNumberedAsByDjl() throws Exception {
        try (Model model = model();
                ParallelTrainer trainer = open(model, TENSOR_2.config())) {
            step(trainer, false);
            model.save(folder, "net");
            trainer.save(folder, "net");
            trainer.getModel().save(folder, "net");
            byte[] first = Files.readAllBytes(folder.resolve("net-0000.params"));
            for (int i = 1; i <= 2; i++) {
                assertEquals(Files.readAllBytes(folder.resolve("net-000" + i + ".params")), first);
            }
            trainer.save(folder, null);
            assertTrue(Files.exists(folder.resolve("model-0000.params")));
        }
    }

    @DataProvider
    public Object[][] diverging() {
        return TrainerKind.rows(
                PLAIN,
                TENSOR_2,
                TENSOR_3,
                TENSOR_4,
                TENSOR_3.clippedTo(1),
                TENSOR_4.clippedTo(1),
                MESH_2X3.clippedTo(1));
    }

    /**
     * A training that has diverged goes on with NaN, as DJL's own does, also where ranks have
     * replicas of a key head at different places in their shards: the bits of their NaN differ.
     */
    @Test(dataProvider = "diverging", timeOut = 60_000)
    public void aDivergedTrainingGoesOnWithNaN(TrainerKind kind) {
        List<Float> losses = diverge(kind, false);
        assertTrue(Float.isFinite(losses.get(0)), "loss " + losses.get(0));
        assertEquals(losses.size(), 6);
        for (float loss : losses.subList(1, 6)) {
            assertTrue(Float.isNaN(loss), losses.toString());
        }
    }

    /** A rank that has a number where the others have NaN has drifted apart still. */
    @Test(timeOut = 60_000)
    public void aNumberIsNoNaN() {
        found(() -> diverge(TENSOR_3.clippedTo(1), true), "after step 6 rank 1 .. drifted apart");
    }

    private static List<Float> diverge(TrainerKind kind, boolean changed) {
        Block attention = attention(12, 6).optKeyValueHeads(2).build();
        Network.Batches batches =
                (manager, step) -> {
                    NDList[] batch = Network.batches("2x3x8", "2x3x8").make(manager, step);
                    if (step == 1) {
                        batch[0].head().set(new NDIndex("0, 0, 7"), Float.NaN);
                    }
                    return batch;
                };
        return TrainingRun.of(
                        kind,
                        sequence(linear(12), attention, linear(8)),
                        new HalfSquareLoss(),
                        new Shape(2, 3, 8),
                        (trainer, manager, losses) -> {
                            steps(trainer, losses, batches, 0, 6);
                            if (changed) {
                                setZero((ParallelTrainer) trainer);
                            }
                        })
                .getNumbers();
    }

    /** Sets an element of the first layer's weight of rank 1. */
    private static void setZero(ParallelTrainer trainer) {
        NDArray weight = held(trainer, 1, 0);
        trainer.getRanks()
                .run(
                        context -> {
                            if (context.getRank() == 1) {
                                weight.stopGradient().set(new NDIndex("0, 0"), 0);
                            }
                            return null;
                        });
    }
}
