package io.djltp.testing;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.rank.RankFailedException;

import org.testng.Assert;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A network in two forms, of plain blocks and of blocks that are cut, with a loss and data. Under
 * every trainer it has the same result as under DJL's own, or is refused before the first step.
 *
 * @param block makes the network; the argument says whether layers are to be cut
 * @param loss makes the loss; the argument is that of {@code block}
 * @param optimizer makes the optimizer
 * @param batches the batch of each step
 */
public record Network(
        Function<Boolean, Block> block,
        Function<Boolean, Loss> loss,
        Supplier<Optimizer> optimizer,
        Batches batches) {

    private static final double TOLERANCE = 1e-5;
    private static final int STEPS = 4;

    /** Makes data. */
    @FunctionalInterface
    public interface Batches {

        /**
         * Makes a batch, the same at every call.
         *
         * @param manager the manager of its arrays
         * @param step the number of the step
         * @return the data and the labels
         */
        NDList[] make(NDManager manager, int step);

        /**
         * Returns the shapes of the data.
         *
         * @return the shapes of the first batch
         */
        default Shape[] shapes() {
            try (NDManager manager = NDManager.newBaseManager()) {
                return make(manager, 0)[0].getShapes();
            }
        }
    }

    /**
     * Creates a network whose loss is the same in both forms.
     *
     * @param block makes the network
     * @param loss makes the loss
     * @param batches the batches
     * @return the network
     */
    public static Network of(Function<Boolean, Block> block, Supplier<Loss> loss, Batches batches) {
        return new Network(block, cut -> loss.get(), () -> Configs.sgd(0.1f, 0.5f), batches);
    }

    /**
     * Returns this network with another optimizer.
     *
     * @param rule makes the optimizer
     * @return the network
     */
    public Network by(Supplier<Optimizer> rule) {
        return new Network(block, loss, rule, batches);
    }

    /** What training has shown. */
    private static final class Result {
        final List<Float> losses = new ArrayList<>();
        final List<Shape> shapes = new ArrayList<>();
        final List<float[]> outputs = new ArrayList<>(); // null where it cannot be read
        final List<float[]> weights = new ArrayList<>();
    }

    /**
     * Asserts that the network is trained as by DJL's own trainer: the losses, the outputs and
     * losses of evaluations before and after, and the weights.
     *
     * @param kinds the trainers, one in each row of a data provider
     */
    public void assertEqual(Object[][] kinds) {
        assertEqual(
                Arrays.stream(kinds).map(row -> (TrainerKind) row[0]).toArray(TrainerKind[]::new));
    }

    /**
     * Asserts the same.
     *
     * @param kinds the trainers
     */
    public void assertEqual(TrainerKind... kinds) {
        assertEqual(TOLERANCE, kinds);
    }

    /**
     * Asserts that trainers have the results of DJL's own.
     *
     * @param tolerance the difference that is allowed, relative to the largest of an array
     * @param kinds the trainers
     */
    public void assertEqual(double tolerance, TrainerKind... kinds) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Result expected = run(PLAIN, manager);
            for (TrainerKind kind : kinds) {
                assertSame(kind + ": ", run(kind, manager), expected, tolerance);
            }
        }
    }

    private static void assertSame(String kind, Result actual, Result expected, double tolerance) {
        ArrayAssert.assertClose(
                ArrayAssert.floats(actual.losses),
                ArrayAssert.floats(expected.losses),
                tolerance,
                kind + "losses");
        Assert.assertEquals(actual.shapes, expected.shapes, kind + "shapes of outputs");
        for (int i = 0; i < expected.outputs.size(); i++) {
            if (actual.outputs.get(i) != null) { // else its loss tells
                ArrayAssert.assertClose(
                        actual.outputs.get(i),
                        expected.outputs.get(i),
                        tolerance,
                        kind + "output " + i);
            }
        }
        ArrayAssert.assertAllClose(
                actual.weights, expected.weights, tolerance, kind + "parameter ");
    }

    /**
     * Asserts that the network is refused before the first step, when it is trained and when it is
     * evaluated first, and that the weights are as they were.
     *
     * @param kind the trainer
     * @param parts what the message must contain
     */
    public void assertRefused(TrainerKind kind, String... parts) {
        assertRefused(kind, false, parts);
        assertRefused(kind, true, parts);
    }

    /**
     * Asserts that the network is refused before the first step.
     *
     * @param kind the trainer
     * @param evaluates whether it is evaluated before it is trained
     * @param parts what the message must contain
     */
    public void assertRefused(TrainerKind kind, boolean evaluates, String... parts) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Result result = new Result();
            RuntimeException e =
                    Assert.expectThrows(
                            RuntimeException.class, () -> run(kind, manager, evaluates, result));
            Throwable cause = e instanceof RankFailedException ? e.getCause() : e;
            Assert.assertTrue(
                    cause instanceof IllegalArgumentException
                            || cause instanceof IllegalStateException,
                    "" + cause);
            Refusals.assertContains(cause.getMessage(), parts);
            Assert.assertEquals(result.losses.size(), 0, "numbers before it was refused");
            List<float[]> before = initialWeights(manager);
            Assert.assertEquals(result.weights.size(), before.size());
            for (int i = 0; i < before.size(); i++) {
                ArrayAssert.assertBitEqual(result.weights.get(i), before.get(i), "parameter " + i);
            }
        }
    }

    private List<float[]> initialWeights(NDManager manager) {
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            Block net = block.apply(true);
            model.setBlock(net);
            try (Trainer trainer = model.newTrainer(config(true))) {
                trainer.initialize(batches.shapes());
                return TrainingRun.weights(net);
            }
        }
    }

    private DefaultTrainingConfig config(boolean cut) {
        return Configs.of(loss.apply(cut), optimizer.get());
    }

    private Result run(TrainerKind kind, NDManager manager) {
        Result result = new Result();
        run(kind, manager, true, result);
        return result;
    }

    private void run(TrainerKind kind, NDManager manager, boolean evaluates, Result result) {
        boolean cut = kind.isParallel();
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net")) {
            Block net = block.apply(cut);
            model.setBlock(net);
            try (Trainer trainer = kind.open(model, config(cut))) {
                trainer.initialize(batches.shapes());
                if (evaluates) {
                    evaluate(trainer, manager, result);
                }
                for (int step = 0; step < STEPS; step++) {
                    try (NDManager scope = manager.newSubManager()) {
                        NDList[] batch = batches.make(scope, step);
                        result.losses.add(TrainingRun.step(trainer, batch[0], batch[1]));
                    }
                }
                evaluate(trainer, manager, result);
            } finally {
                result.weights.addAll(TrainingRun.weights(net));
            }
        }
    }

    private void evaluate(Trainer trainer, NDManager manager, Result result) {
        try (NDManager scope = manager.newSubManager()) {
            NDList[] batch = batches.make(scope, STEPS);
            NDList output = trainer.evaluate(batch[0]);
            result.losses.add(trainer.getLoss().evaluate(batch[1], output).getFloat());
            for (NDArray array : output) {
                result.shapes.add(array.getShape());
                boolean standsIn = Proxy.isProxyClass(array.getClass()); // for slices of the ranks
                result.outputs.add(standsIn ? null : ArrayAssert.floats(array));
            }
        }
    }

    /**
     * Returns batches of random arrays.
     *
     * @param data the shapes of the data, such as "7x5" or "7x5 7x3:11", where numbers behind a
     *     colon are class numbers below it
     * @param labels those of the labels
     * @return the batches
     */
    public static Batches batches(String data, String labels) {
        return (manager, step) ->
                new NDList[] {arrays(manager, 10 + step, data), arrays(manager, 50 + step, labels)};
    }

    /**
     * Returns batches of random arrays with another number of rows in each step.
     *
     * @param rows the rows, in turn
     * @param data the shapes of the data, where R is the number of rows
     * @param labels those of the labels
     * @return the batches
     */
    public static Batches batches(int[] rows, String data, String labels) {
        return (manager, step) -> {
            String number = "" + rows[step % rows.length];
            return batches(data.replace("R", number), labels.replace("R", number))
                    .make(manager, step);
        };
    }

    private static NDList arrays(NDManager manager, long seed, String texts) {
        NDList arrays = new NDList();
        for (String text : texts.split(" ")) {
            String[] parts = text.split(":");
            long[] shape = Arrays.stream(parts[0].split("x")).mapToLong(Long::parseLong).toArray();
            long own = seed + 100 * arrays.size();
            if (parts.length == 1) {
                arrays.add(TrainingRun.random(manager, own, shape));
            } else {
                int size = (int) new Shape(shape).size();
                NDArray flat = TrainingRun.labels(manager, own, size, Integer.parseInt(parts[1]));
                arrays.add(flat.reshape(shape));
            }
        }
        return arrays;
    }

    /**
     * Returns batches of random numbers and real targets.
     *
     * @param rows the rows
     * @param features the features of a row
     * @param targets the targets of a row
     * @return the batches
     */
    public static Batches regression(int rows, int features, int targets) {
        return batches(rows + "x" + features, rows + "x" + targets);
    }

    /**
     * Returns batches of random numbers and class numbers.
     *
     * @param rows the rows
     * @param features the features of a row
     * @param classes the number of classes
     * @return the batches
     */
    public static Batches classification(int rows, int features, int classes) {
        return batches(rows + "x" + features, rows + ":" + classes);
    }
}
