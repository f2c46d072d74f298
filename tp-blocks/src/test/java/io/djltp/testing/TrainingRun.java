package io.djltp.testing;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveCounts;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.Consumer;

/** What comes out of a training: numbers that its loop noted, outputs, and the weights. */
public final class TrainingRun {

    private static final int SEED = 42;

    private final List<Float> numbers = new ArrayList<>();
    private final List<Output> outputs = new ArrayList<>();
    private final List<float[]> weights = new ArrayList<>();

    TrainingRun() {}

    /** An output, whose values are null where they cannot be read. */
    private record Output(Shape shape, float[] values) {}

    /** Returns the numbers that the loop has noted. */
    public List<Float> getNumbers() {
        return numbers;
    }

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
        void run(Trainer trainer, NDManager manager, List<Float> numbers) throws Exception;
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
        return of(kind, block, Configs.of(loss, Configs.sgd(0.1f, 0.5f)), input, loop);
    }

    /**
     * Runs a training loop from the weights that a fixed seed gives.
     *
     * @param kind the trainer
     * @param block the network
     * @param config the loss, the optimizer and the listeners
     * @param input the shape of a batch
     * @param loop the loop
     * @return the result
     */
    public static TrainingRun of(
            TrainerKind kind, Block block, TrainingConfig config, Shape input, Loop loop) {
        return of(kind, block, config, new Shape[] {input}, loop);
    }

    /**
     * Runs a training loop from the weights that a fixed seed gives.
     *
     * @param kind the trainer
     * @param block the network
     * @param config the loss, the optimizer and the listeners
     * @param inputs the shapes of a batch
     * @param loop the loop
     * @return the result
     */
    public static TrainingRun of(
            TrainerKind kind, Block block, TrainingConfig config, Shape[] inputs, Loop loop) {
        TrainingRun run = new TrainingRun();
        run.train(kind, block, config, inputs, loop);
        return run;
    }

    /** Runs a training loop; the weights are read if it fails, too. */
    void train(TrainerKind kind, Block block, TrainingConfig config, Shape[] inputs, Loop loop) {
        Engine.getInstance().setRandomSeed(SEED);
        try (Model model = Blocks.model(block)) {
            try (Trainer trainer = kind.open(model, config, inputs);
                    NDManager manager = NDManager.newBaseManager()) {
                loop.run(trainer, manager, numbers);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Exception e) {
                throw new AssertionError(e);
            } finally {
                if (block.isInitialized()) {
                    weights.addAll(weights(block));
                }
            }
        }
    }

    /** Notes the loss and the outputs of an evaluation. */
    void evaluate(Trainer trainer, NDList[] batch) {
        NDList output = trainer.evaluate(batch[0]);
        numbers.add(trainer.getLoss().evaluate(batch[1], output).getFloat());
        for (NDArray array : output) {
            boolean standsIn = Proxy.isProxyClass(array.getClass()); // for slices of the ranks
            outputs.add(new Output(array.getShape(), standsIn ? null : ArrayAssert.floats(array)));
        }
    }

    /**
     * Trains with a batch in each step.
     *
     * @param kind the trainer
     * @param block the network
     * @param config the loss, the optimizer and the listeners
     * @param batches the batches
     * @param steps how many
     * @return the losses and the weights
     */
    public static TrainingRun of(
            TrainerKind kind,
            Block block,
            TrainingConfig config,
            Network.Batches batches,
            int steps) {
        return of(
                kind, block, config, batches.shapes(), (t, m, n) -> steps(t, n, batches, 0, steps));
    }

    /**
     * Makes steps with a batch each.
     *
     * @param trainer the trainer
     * @param numbers where the losses are noted
     * @param batches the batches
     * @param from the number of the first step
     * @param to the number behind the last step
     */
    public static void steps(
            Trainer trainer, List<Float> numbers, Network.Batches batches, int from, int to) {
        for (int step = from; step < to; step++) {
            try (NDManager manager = NDManager.newBaseManager()) {
                NDList[] batch = batches.make(manager, step);
                numbers.add(step(trainer, batch[0], batch[1]));
            }
        }
    }

    /**
     * Makes a step.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @return the loss
     */
    public static float step(Trainer trainer, NDList data, NDList labels) {
        float loss = backward(trainer, data, labels);
        trainer.step();
        return loss;
    }

    /**
     * Makes a step.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @return the loss
     */
    public static float step(Trainer trainer, NDArray data, NDArray labels) {
        return step(trainer, new NDList(data), new NDList(labels));
    }

    /**
     * Forgets the gradients of a trainer.
     *
     * @param trainer the trainer
     */
    public static void zeroGradients(Trainer trainer) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            collector.zeroGradients();
        }
    }

    /**
     * Counts the collective operations of rank 0.
     *
     * @param trainer the parallel trainer
     * @param work what is counted
     * @return the counts
     */
    public static CollectiveCounts counted(Trainer trainer, Runnable work) {
        ParallelTrainer parallel = (ParallelTrainer) trainer;
        CollectiveCounts before = parallel.getCollectiveCounts();
        work.run();
        return parallel.getCollectiveCounts().minus(before);
    }

    /**
     * Returns what a rank has of a parameter.
     *
     * @param trainer the parallel trainer
     * @param rank the rank
     * @param parameter the number of the parameter
     * @return the shard or replica
     */
    public static NDArray held(Trainer trainer, int rank, int parameter) {
        return ((ParallelTrainer) trainer)
                .getParameterStore(rank)
                .getValue(parameter(trainer, parameter), null, true);
    }

    /**
     * Returns a parameter of a trainer's model.
     *
     * @param trainer the trainer
     * @param parameter its number
     * @return the parameter
     */
    public static Parameter parameter(Trainer trainer, int parameter) {
        return trainer.getModel().getBlock().getParameters().valueAt(parameter);
    }

    /**
     * Notes all elements of an array.
     *
     * @param numbers where they are noted
     * @param array the array
     */
    public static void note(List<Float> numbers, NDArray array) {
        for (float value : ArrayAssert.floats(array)) {
            numbers.add(value);
        }
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
     * Computes the gradients of a batch. Under DJL's own trainer, too, the numbers that a network
     * computes with live until then: Java's collector could free that of {@code x.mul(2)} before.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @return the loss
     */
    public static float backward(Trainer trainer, NDList data, NDList labels) {
        return backward(trainer, data, labels, output -> {});
    }

    /**
     * Computes the gradients of a batch.
     *
     * @param trainer the trainer
     * @param data the data
     * @param labels the labels
     * @param between gets the output, before the backward pass
     * @return the loss
     */
    @SuppressWarnings("try") // memory is kept by being open
    public static float backward(
            Trainer trainer, NDList data, NDList labels, Consumer<NDList> between) {
        boolean plain = !(trainer instanceof ParallelTrainer);
        try (GradientCollector collector = trainer.newGradientCollector();
                JavaMemory memory = plain ? JavaMemory.keep() : null) {
            NDList output = trainer.forward(data, labels);
            NDArray loss = trainer.getLoss().evaluate(labels, output);
            between.accept(output);
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
     * Asserts that two runs have the same result to the last bit.
     *
     * @param expected the expected run
     */
    public void assertBitEqual(TrainingRun expected) {
        assertBitEqual(expected, "");
    }

    /**
     * Asserts that two runs have the same result to the last bit.
     *
     * @param expected the expected run
     * @param what what is compared, for the message
     */
    public void assertBitEqual(TrainingRun expected, String what) {
        Assert.assertEquals(numbers, expected.numbers, what + " numbers");
        ArrayAssert.assertAllBitEqual(weights, expected.weights, what + " parameter");
    }

    /**
     * Asserts that two runs have the same result.
     *
     * @param expected the expected run
     * @param tolerance the difference that is allowed, relative to the largest of an array
     */
    public void assertSame(TrainingRun expected, double tolerance) {
        assertSame(expected, tolerance, "");
    }

    /**
     * Asserts that two runs have the same result.
     *
     * @param expected the expected run
     * @param tolerance the difference that is allowed, relative to the largest of an array
     * @param what what is compared, for the message
     */
    public void assertSame(TrainingRun expected, double tolerance, String what) {
        ArrayAssert.assertClose(
                ArrayAssert.floats(numbers),
                ArrayAssert.floats(expected.numbers),
                tolerance,
                what + " numbers");
        Assert.assertEquals(outputs.size(), expected.outputs.size(), what + " outputs");
        for (int i = 0; i < outputs.size(); i++) {
            Output output = outputs.get(i);
            Assert.assertEquals(output.shape, expected.outputs.get(i).shape, what + " output");
            if (output.values != null) { // else its loss tells
                float[] values = expected.outputs.get(i).values;
                ArrayAssert.assertClose(output.values, values, tolerance, what + " output " + i);
            }
        }
        ArrayAssert.assertAllClose(weights, expected.weights, tolerance, what + " parameter");
    }
}
