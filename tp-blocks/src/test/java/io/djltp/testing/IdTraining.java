package io.djltp.testing;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.CollectiveCounts;
import io.djltp.training.ParallelTrainer;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/** What three steps make of a network whose input is ids, [rows, places], and labels. */
public final class IdTraining {

    /** The rows of a batch, uneven over 2 and 4 ranks. */
    public static final int ROWS = 5;

    /** The ids of a row. */
    public static final int PLACES = 3;

    private static final int STEPS = 3;

    private final List<Float> losses = new ArrayList<>();
    private List<float[]> weights;
    private CollectiveCounts counts; // of the last forward and backward pass

    private IdTraining() {}

    /**
     * A network to train.
     *
     * @param block the network
     * @param loss the loss
     * @param vocabulary the number of ids
     * @param labels makes labels of a seed
     * @param type the type of the ids
     * @param ids makes ids of a seed, 10 for each step
     */
    public record Task(
            Supplier<Block> block,
            Loss loss,
            int vocabulary,
            Labels labels,
            DataType type,
            Labels ids) {

        /**
         * Creates a task with some ids.
         *
         * @param block the network
         * @param loss the loss
         * @param vocabulary the number of ids
         * @param labels makes labels of a seed
         * @param type the type of the ids
         */
        public Task(
                Supplier<Block> block, Loss loss, int vocabulary, Labels labels, DataType type) {
            this(
                    block,
                    loss,
                    vocabulary,
                    labels,
                    type,
                    (m, seed) -> IdTraining.ids(m, seed, vocabulary));
        }
    }

    /** Makes labels. */
    @FunctionalInterface
    public interface Labels {

        /**
         * Makes labels, the same at every call.
         *
         * @param manager the manager
         * @param seed the seed
         * @return the labels
         */
        NDArray make(NDManager manager, int seed);
    }

    /**
     * Returns the optimizers of tests.
     *
     * @return SGD, momentum and Adam
     */
    public static List<Supplier<Optimizer>> optimizers() {
        Tracker rate = Tracker.fixed(0.3f);
        return List.of(
                () -> Optimizer.sgd().setLearningRateTracker(rate).build(),
                () -> Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build(),
                () -> Configs.adam(0.02f));
    }

    /**
     * Trains.
     *
     * @param kind the trainer
     * @param task the network
     * @param optimizer the optimizer
     * @param batches the batches of a step, whose gradients add up
     * @return the result
     */
    public static IdTraining run(TrainerKind kind, Task task, Optimizer optimizer, int batches) {
        IdTraining run = new IdTraining();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            Block block = task.block.get();
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(task.loss, optimizer);
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(ROWS, PLACES));
                for (int step = 0; step < STEPS; step++) {
                    for (int batch = 0; batch < batches; batch++) {
                        run.backward(trainer, manager, task, 10 * step + batch);
                    }
                    trainer.step();
                }
            }
            run.weights = TrainingRun.weights(block);
        }
        return run;
    }

    private void backward(Trainer trainer, NDManager manager, Task task, int seed) {
        CollectiveCounts before = counts(trainer);
        NDArray ids = task.ids.make(manager, seed).toType(task.type, false);
        NDList labels = new NDList(task.labels.make(manager, seed));
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray loss =
                    trainer.getLoss().evaluate(labels, trainer.forward(new NDList(ids), labels));
            collector.backward(loss);
            losses.add(loss.getFloat());
        }
        counts = before == null ? null : counts(trainer).minus(before);
    }

    private static CollectiveCounts counts(Trainer trainer) {
        return trainer instanceof ParallelTrainer parallel ? parallel.getCollectiveCounts() : null;
    }

    /**
     * Returns ids, some of them several times.
     *
     * @param manager the manager
     * @param seed the seed
     * @param vocabulary the number of ids
     * @return the ids, int64 [rows, places]
     */
    public static NDArray ids(NDManager manager, int seed, int vocabulary) {
        NDArray ids = TrainingRun.labels(manager, 70 + seed, ROWS * PLACES, vocabulary);
        ids.set(new ai.djl.ndarray.index.NDIndex("7:9"), vocabulary - 1);
        return ids.reshape(ROWS, PLACES);
    }

    /**
     * Returns the collective operations of rank 0 in the last forward and backward pass.
     *
     * @return the counts, or {@code null} under DJL's trainer
     */
    public CollectiveCounts getCounts() {
        return counts;
    }

    /**
     * Returns the losses of all batches.
     *
     * @return the losses
     */
    public List<Float> getLosses() {
        return losses;
    }

    /**
     * Returns the trained weights.
     *
     * @return one array for each parameter
     */
    public List<float[]> getWeights() {
        return weights;
    }

    /**
     * Asserts that two runs have the same result.
     *
     * @param expected the expected run
     * @param tolerance the difference that is allowed, relative to the largest of an array
     * @param what what was trained
     */
    public void assertSame(IdTraining expected, double tolerance, String what) {
        ArrayAssert.assertClose(
                ArrayAssert.floats(losses),
                ArrayAssert.floats(expected.losses),
                tolerance,
                what + ": losses");
        // a tied weight is there once more at the end
        List<float[]> own = weights.subList(0, expected.weights.size());
        ArrayAssert.assertAllClose(own, expected.weights, tolerance, what + ": parameter");
    }
}
