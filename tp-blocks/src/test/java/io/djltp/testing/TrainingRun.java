package io.djltp.testing;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;

/** What comes out of a training loop of a test's own: numbers that it noted, and the weights. */
public final class TrainingRun {

    private static final int SEED = 42;

    private final List<Float> numbers = new ArrayList<>();
    private final List<float[]> weights = new ArrayList<>();

    private TrainingRun() {}

    /** Returns the values of all parameters after the training. */
    public List<float[]> getWeights() {
        return weights;
    }

    /** A training loop. */
    @FunctionalInterface
    public interface Loop {

        /**
         * Trains.
         *
         * @param trainer the trainer, initialized
         * @param manager the manager of the loop's arrays
         * @param numbers where the loop notes what is to be compared
         */
        void run(Trainer trainer, NDManager manager, List<Float> numbers);
    }

    /**
     * Runs a training loop with SGD with momentum, from the weights that a fixed seed gives.
     *
     * @param kind the trainer
     * @param block the network
     * @param loss the loss
     * @param input the shape of a batch
     * @param loop the loop
     * @return the result
     */
    public static TrainingRun of(TrainerKind kind, Block block, Loss loss, Shape input, Loop loop) {
        TrainingRun run = new TrainingRun();
        Engine.getInstance().setRandomSeed(SEED);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(loss)
                            .optOptimizer(Configs.sgd(0.1f, 0.5f))
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(input);
                loop.run(trainer, manager, run.numbers);
            }
            run.weights.addAll(weights(block));
        }
        return run;
    }

    /**
     * Computes the gradients of a batch.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @return the loss
     */
    public static float backward(Trainer trainer, NDArray data, NDArray labels) {
        return backward(trainer, new NDList(data), new NDList(labels));
    }

    /**
     * Computes the gradients of a batch.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @return the loss
     */
    public static float backward(Trainer trainer, NDList data, NDList labels) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data, labels);
            NDArray loss = trainer.getLoss().evaluate(labels, output);
            collector.backward(loss);
            return loss.getFloat();
        }
    }

    /**
     * Returns the values of all parameters.
     *
     * @param block the block
     * @return one array for each parameter
     */
    public static List<float[]> weights(Block block) {
        List<float[]> weights = new ArrayList<>();
        block.getParameters()
                .forEach(pair -> weights.add(pair.getValue().getArray().toFloatArray()));
        return weights;
    }

    /**
     * Returns numbers from -1 to 1, the same at every call.
     *
     * @param manager the manager
     * @param seed the seed
     * @param shape the shape
     * @return the numbers
     */
    public static NDArray random(NDManager manager, long seed, long... shape) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[(int) new Shape(shape).size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (2 * random.nextDouble() - 1);
        }
        return manager.create(values, new Shape(shape));
    }

    /**
     * Returns labels, the same at every call.
     *
     * @param manager the manager
     * @param seed the seed
     * @param rows how many
     * @param classes the number of classes
     * @return the labels
     */
    public static NDArray labels(NDManager manager, long seed, int rows, int classes) {
        SplittableRandom random = new SplittableRandom(seed);
        long[] values = new long[rows];
        for (int i = 0; i < rows; i++) {
            values[i] = random.nextInt(classes);
        }
        return manager.create(values);
    }

    /**
     * Asserts that two runs have the same result.
     *
     * @param expected the expected run
     * @param tolerance the difference that is allowed, relative to the largest of an array
     */
    public void assertSame(TrainingRun expected, double tolerance) {
        ArrayAssert.assertClose(
                ArrayAssert.floats(numbers),
                ArrayAssert.floats(expected.numbers),
                tolerance,
                "numbers");
        ArrayAssert.assertAllClose(weights, expected.weights, tolerance, "parameter");
    }
}
