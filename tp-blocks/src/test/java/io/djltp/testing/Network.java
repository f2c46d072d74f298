package io.djltp.testing;

import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.internal.libtorch.ProcessorArithmetic;
import io.djltp.rank.RankFailedException;

import org.testng.Assert;
import org.testng.SkipException;

import java.util.Arrays;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A network in two forms, of plain blocks and of blocks that are cut, with a loss and data. Under
 * every trainer it has the same result as under DJL's own, or is refused before the first step.
 *
 * @param block makes the network for a trainer; under ranks, layers are cut
 * @param loss makes the loss; the argument says whether layers are cut
 * @param optimizer makes the optimizer
 * @param batches the batch of each step
 */
public record Network(
        Function<TrainerKind, Block> block,
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

    /** Skips a test of convolutions or LSTMs where they are wrong in DJL alone too. */
    public static void skipWhereConvolutionsAreWrong() {
        if (ProcessorArithmetic.hasWrongConvolutions()) {
            throw new SkipException(
                    "libtorch's convolutions and LSTMs are wrong here: the machine hides the sizes"
                            + " of its caches from oneDNN 3.7");
        }
    }

    /**
     * Creates a network whose loss is the same in both forms.
     *
     * @param block makes the network; the argument says whether layers are to be cut
     * @param loss makes the loss
     * @param batches the batches
     * @return the network
     */
    public static Network of(Function<Boolean, Block> block, Supplier<Loss> loss, Batches batches) {
        return new Network(
                kind -> block.apply(kind.isParallel()),
                cut -> loss.get(),
                () -> Configs.sgd(0.1f, 0.5f),
                batches);
    }

    /**
     * Returns this network with another loss.
     *
     * @param other makes the loss
     * @return the network
     */
    public Network with(Function<Boolean, Loss> other) {
        return new Network(block, other, optimizer, batches);
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
        TrainingRun expected = train(PLAIN);
        for (TrainerKind kind : kinds) {
            train(kind).assertSame(expected, tolerance, kind + ":");
        }
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
        TrainingRun run = new TrainingRun();
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class, () -> train(kind, make(kind), evaluates, run));
        Throwable cause = e instanceof RankFailedException ? e.getCause() : e;
        Assert.assertTrue(
                cause instanceof IllegalArgumentException || cause instanceof IllegalStateException,
                "" + cause);
        Refusals.assertContains(cause.getMessage(), parts);
        Assert.assertEquals(run.getNumbers().size(), 0, "numbers before it was refused");
        Block net = make(kind);
        TrainingRun initial =
                TrainingRun.of(PLAIN, net, config(true), batches.shapes(), (t, m, numbers) -> {});
        run.assertBitEqual(initial);
    }

    /**
     * Returns a new configuration.
     *
     * @param cut whether layers are cut
     * @return the loss and the optimizer
     */
    public DefaultTrainingConfig config(boolean cut) {
        return Configs.of(loss.apply(cut), optimizer.get());
    }

    /**
     * Trains from the weights that a fixed seed gives, with an evaluation before and after.
     *
     * @param kind the trainer
     * @return the losses, the outputs of the evaluations, and the weights
     */
    public TrainingRun train(TrainerKind kind) {
        TrainingRun run = new TrainingRun();
        train(kind, make(kind), true, run);
        return run;
    }

    private Block make(TrainerKind kind) {
        Engine.getInstance().setRandomSeed(42); // of a block that is made with its weights
        return block.apply(kind);
    }

    private void train(TrainerKind kind, Block net, boolean evaluates, TrainingRun run) {
        run.train(
                kind,
                net,
                config(kind.isParallel()),
                batches.shapes(),
                (trainer, manager, losses) -> {
                    if (evaluates) {
                        run.evaluate(trainer, batches.make(manager, STEPS));
                    }
                    TrainingRun.steps(trainer, losses, batches, 0, STEPS);
                    run.evaluate(trainer, batches.make(manager, STEPS));
                });
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
