package io.djltp.checkpoint;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.StateWriter.PendingSave;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.function.Supplier;

/** A training from its first step or from a checkpoint: what it computes, and what it leaves. */
final class StoppedRun {

    final List<Float> losses = new ArrayList<>();
    final List<float[]> weights = new ArrayList<>();

    private StoppedRun() {}

    /** Makes an array of a step, the same at every call. */
    @FunctionalInterface
    interface Source {
        NDArray make(NDManager manager, int step);
    }

    /** What is done with a trainer before a step. */
    @FunctionalInterface
    interface Use {
        void with(ParallelTrainer trainer, TrainingState state, int step) throws IOException;
    }

    /**
     * What is trained.
     *
     * @param network makes the network
     * @param loss makes the loss
     * @param optimizer makes the optimizer
     * @param data makes the data of a step
     * @param labels makes the labels of a step
     * @param microBatches how many batches have their gradients added up in a step
     */
    record Task(
            Supplier<Block> network,
            Supplier<Loss> loss,
            Supplier<Optimizer> optimizer,
            Source data,
            Source labels,
            int microBatches) {

        private static final int NEXT = 1000; // the seed of the next batch of a step

        Task(
                Supplier<Block> network,
                Supplier<Loss> loss,
                Supplier<Optimizer> optimizer,
                Source data,
                Source labels) {
            this(network, loss, optimizer, data, labels, 1);
        }

        Task with(Supplier<Optimizer> other) {
            return new Task(network, loss, other, data, labels, microBatches);
        }

        Task inMicroBatches(int count) {
            return new Task(network, loss, optimizer, data, labels, count);
        }

        /** Gives a model the network, and returns how it is trained. */
        DefaultTrainingConfig begin(Model model) {
            model.setBlock(network.get());
            return Configs.of(loss.get(), optimizer.get());
        }

        /** Makes a step, and returns the loss of its last batch. */
        float step(ParallelTrainer trainer, NDManager manager, int step) {
            float last = Float.NaN;
            for (int i = 0; i < microBatches; i++) {
                NDArray rows = data.make(manager, step + i * NEXT);
                last = TrainingRun.backward(trainer, rows, labels.make(manager, step + i * NEXT));
            }
            trainer.step();
            return last;
        }
    }

    /** Trains from the first step, without a checkpoint. */
    static StoppedRun whole(TrainerKind kind, Task task, int steps) {
        return run(kind, task, 42, 0, steps, (trainer, state, step) -> {});
    }

    /**
     * Asserts that a run that was saved after some steps goes on from each of them to the bits of
     * one that was not stopped, which it returns.
     */
    static StoppedRun assertResumes(TrainerKind kind, Task task, int steps, Integer... stops) {
        StoppedRun whole = whole(kind, task, steps);
        inFolder(
                folder -> {
                    saved(kind, task, List.of(stops), folder).assertBeginningOf(whole);
                    for (int stop : stops) {
                        resumed(kind, task, stop, steps, folder)
                                .assertEndOf(whole, "after " + stop);
                    }
                });
        return whole;
    }

    /** Asserts that a checkpoint of another training is one error, and changes nothing. */
    static void assertRefused(
            TrainerKind kind, Task task, Path folder, long step, String... texts) {
        run(
                        kind,
                        task,
                        42,
                        0,
                        3,
                        (trainer, state, each) ->
                                Refusals.throwsArgument(() -> restore(state, folder, step), texts))
                .assertEndOf(whole(kind, task, 3), "after the refusal");
    }

    /** Trains to the step after the last of some after which it saves. */
    static StoppedRun saved(TrainerKind kind, Task task, List<Integer> steps, Path folder) {
        return run(
                kind,
                task,
                42,
                0,
                Collections.max(steps) + 1,
                (trainer, state, step) -> {
                    if (steps.contains(step)) {
                        save(state, folder);
                    }
                });
    }

    /** Begins to save, and removes nothing. */
    static PendingSave begin(TrainingState state, CheckpointFolder folder) {
        return state.save(folder, Integer.MAX_VALUE, new JsonObject(), null);
    }

    static void save(TrainingState state, Path path) throws IOException {
        try (CheckpointFolder folder = CheckpointFolder.open(path)) {
            PendingSave save = begin(state, folder);
            Assert.assertTrue(save.await(), "" + save.getFailure());
        }
    }

    /** Trains from a checkpoint on; the trainer begins with other weights. */
    static StoppedRun resumed(TrainerKind kind, Task task, int from, int to, Path folder) {
        return run(
                kind,
                task,
                7,
                from,
                to,
                (trainer, state, step) -> {
                    if (step == from) {
                        restore(state, folder, from);
                    }
                });
    }

    /** Restores and saves, and makes a step to see that the state is one. */
    static void savedAgain(TrainerKind kind, Task task, int step, Path before, Path after) {
        run(
                kind,
                task,
                7,
                step,
                step + 1,
                (trainer, state, each) -> {
                    restore(state, before, step);
                    save(state, after);
                });
    }

    static void restore(TrainingState state, Path path, long step) throws IOException {
        try (CheckpointFolder folder = CheckpointFolder.read(path);
                Checkpoint checkpoint = folder.openStep(step)) {
            state.restore(checkpoint, () -> null);
        }
    }

    static StoppedRun run(TrainerKind kind, Task task, int seed, int from, int to, Use use) {
        StoppedRun run = new StoppedRun();
        Engine.getInstance().setRandomSeed(seed);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            DefaultTrainingConfig config = task.begin(model);
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config);
                    TrainingState state = new TrainingState(trainer)) {
                Shape input = task.data().make(manager, 0).getShape();
                trainer.initialize(input);
                for (int step = from; step < to; step++) {
                    try (NDManager scope = manager.newSubManager()) {
                        use.with(trainer, state, step);
                        run.losses.add(task.step(trainer, scope, step));
                    }
                }
            }
            run.weights.addAll(TrainingRun.weights(model.getBlock()));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
        return run;
    }

    /** Does something with a folder that is removed afterwards. */
    static void inFolder(InFolder use) {
        try {
            Path folder = TestFolder.create();
            use.with(folder);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** What is done with a folder. */
    @FunctionalInterface
    interface InFolder {
        void with(Path folder) throws IOException;
    }

    /** Asserts that this is the end of another run, bit for bit. */
    void assertEndOf(StoppedRun whole, String what) {
        int from = whole.losses.size() - losses.size();
        Assert.assertEquals(losses, whole.losses.subList(from, whole.losses.size()), what);
        for (int i = 0; i < weights.size(); i++) {
            Assert.assertTrue(
                    Arrays.equals(weights.get(i), whole.weights.get(i)), what + ": parameter " + i);
        }
    }

    /** Asserts that this is the beginning of another run, bit for bit. */
    void assertBeginningOf(StoppedRun whole) {
        Assert.assertEquals(losses, whole.losses.subList(0, losses.size()));
    }

    /** Asserts that this is nearly the end of another run. */
    void assertCloseToEndOf(StoppedRun whole, double tolerance, String what) {
        int from = whole.losses.size() - losses.size();
        for (int i = 0; i < losses.size(); i++) {
            float expected = whole.losses.get(from + i);
            Assert.assertEquals(losses.get(i), expected, tolerance * Math.abs(expected), what);
        }
        for (int i = 0; i < weights.size(); i++) {
            ArrayAssert.assertClose(
                    weights.get(i), whole.weights.get(i), tolerance, what + ": parameter " + i);
        }
    }
}
