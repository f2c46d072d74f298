package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.RankThreads;

import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;

/**
 * One rank throws, in its forward pass, in its backward pass or in a gradient hook: the job ends at
 * once with that exception, all other ranks stop, the model keeps its weights, and a new trainer
 * works in the same JVM.
 */
public class RankFailureTest {

    private static final int RANKS = 4;
    private static final int VICTIM = 2;

    /** Far below the time-out of a collective operation, which is five minutes. */
    private static final double SECONDS = 5;

    private final ConcurrentMap<Integer, Thread> threads = new ConcurrentHashMap<>();

    private Duration timeout;

    /** A place in the network at which something can be done to what passes. */
    private UnaryOperator<NDArray> saboteur = UnaryOperator.identity();

    @BeforeMethod
    public void reset() {
        threads.clear();
        timeout = Duration.ofMinutes(5);
        saboteur = UnaryOperator.identity();
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.DATA}, {ParallelMode.MIXED}};
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anExceptionInForward(ParallelMode mode) throws InterruptedException {
        IllegalStateException thrown = new IllegalStateException("no more forward");
        UnaryOperator<NDArray> fault =
                array -> {
                    throw thrown;
                };
        RankFailedException failure = fail(mode, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        assertSame(failure.getCause(), thrown);
        assertTrue(failure.getMessage().contains("rank 2"), failure.getMessage());
        assertTrue(failure.getMessage().contains("no more forward"), failure.getMessage());
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anErrorInForward(ParallelMode mode) throws InterruptedException {
        OutOfMemoryError thrown = new OutOfMemoryError("as good as");
        UnaryOperator<NDArray> fault =
                array -> {
                    throw thrown;
                };
        RankFailedException failure = fail(mode, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        assertSame(failure.getCause(), thrown);
    }

    /** Libtorch itself refuses: what it saved for the backward pass was changed meanwhile. */
    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anExceptionInBackward(ParallelMode mode) throws InterruptedException {
        UnaryOperator<NDArray> fault =
                array -> {
                    NDArray saved = array.tanh();
                    NDArray result = saved.mul(2);
                    saved.addi(1);
                    return result;
                };
        RankFailedException failure = fail(mode, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        String message = failure.getCause().getMessage();
        assertTrue(message.contains("modified by an inplace operation"), message);
    }

    /** A hook in Java throws, deep below libtorch: a loss that was differentiated before. */
    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anExceptionInAHook(ParallelMode mode) throws InterruptedException {
        UnaryOperator<NDArray> fault =
                array -> {
                    try (NDArray gradient = array.stopGradient();
                            NDArray zero = array.getManager().create(0f)) {
                        NDArray twice =
                                ParallelContext.current()
                                        .getGradientKeeper()
                                        .scalar(array, zero, gradient.onesLike());
                        NDArray leaf = array.add(twice);
                        Autograd.backward(twice, twice.onesLike());
                        return leaf;
                    }
                };
        RankFailedException failure = fail(mode, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        String message = failure.getCause().getMessage();
        assertTrue(message.contains("A second backward pass"), message);
    }

    /** The hooks of the mappings communicate: here with ranks that never come. */
    @Test(timeOut = 60_000)
    public void oneRankWaitsInAHookForTheOthers() throws InterruptedException {
        timeout = Duration.ofMillis(500);
        UnaryOperator<NDArray> fault =
                array -> ParallelContext.current().getMappings().copyToRegion(array.mul(2));
        RankFailedException failure = fail(ParallelMode.TENSOR, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        // the exception of the hook itself, not libtorch's rendering of it
        assertTrue(failure.getCause() instanceof CollectiveException, "" + failure);
        String message = failure.getCause().getMessage();
        for (String part : new String[] {"500 ms", "rank 2 waits in all-reduce", "for rank 0"}) {
            assertTrue(message.contains(part), message);
        }
    }

    /** What a lost connection would look like. */
    @Test(timeOut = 60_000)
    public void theGroupIsAbortedBeforeBackward() throws InterruptedException {
        IllegalStateException lost = new IllegalStateException("connection lost");
        RankFailedException failure =
                fail(
                        ParallelMode.TENSOR,
                        UnaryOperator.identity(),
                        trainer -> {
                            NDList data = data(trainer);
                            NDList labels = labels(trainer);
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                NDList output = trainer.forward(data, labels);
                                NDArray loss = trainer.getLoss().evaluate(labels, output);
                                ((ParallelTrainer) trainer)
                                        .getRanks()
                                        .getContext(VICTIM)
                                        .getTensorGroup()
                                        .abort(lost);
                                collector.backward(loss);
                            }
                        });
        // the exception of the hook itself, not libtorch's rendering of it
        assertTrue(failure.getCause() instanceof CollectiveException, "" + failure);
        assertSame(failure.getCause().getCause(), lost);
    }

    /** An interrupt ends the job as well, but not before the ranks have stopped. */
    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anInterruptOfTheCaller(ParallelMode mode) throws InterruptedException {
        Thread caller = Thread.currentThread();
        CountDownLatch goOn = new CountDownLatch(1);
        RankThreads ranks = new RankThreads();
        try (Model model = model();
                ParallelTrainer trainer = open(model, mode)) {
            step(trainer, 1);
            saboteur =
                    array -> {
                        caller.interrupt();
                        try {
                            goOn.await(200, TimeUnit.MILLISECONDS); // a rank does not notice
                        } catch (InterruptedException e) {
                            throw new IllegalStateException(e);
                        }
                        return array;
                    };
            assertThrows(RuntimeException.class, () -> step(trainer, 1));
            assertTrue(Thread.interrupted(), "the flag is kept");
            assertIdle();
            saboteur = UnaryOperator.identity();
            throwsState(() -> step(trainer, 1), "Interrupted", "a new trainer");
        }
        ranks.assertCount(0);
    }

    /** After the failure every call says so, at once. */
    @Test(timeOut = 60_000)
    public void theTrainerIsOfNoUseAfterwards() {
        IllegalStateException thrown = new IllegalStateException("only once");
        try (Model model = model()) {
            ParallelTrainer trainer = open(model, ParallelMode.TENSOR);
            step(trainer, 1);
            saboteur =
                    array -> {
                        throw thrown;
                    };
            RankFailedException first =
                    expectThrows(RankFailedException.class, () -> step(trainer, 1));
            saboteur = UnaryOperator.identity();
            RankFailedException second =
                    expectThrows(RankFailedException.class, () -> step(trainer, 1));
            assertSame(second.getCause(), thrown);
            assertEquals(second.getRank(), first.getRank());
            trainer.close();
            trainer.close(); // a second time is no error
        }
    }

    /**
     * Trains three steps, lets one rank fail, and checks what must hold after any failure.
     *
     * @return the failure
     */
    private RankFailedException fail(
            ParallelMode mode, UnaryOperator<NDArray> fault, Consumer<Trainer> failing)
            throws InterruptedException {
        try (Model model = model()) {
            List<float[]> before = weightsOfTwin(mode);
            RankFailedException failure;
            try (ParallelTrainer trainer = open(model, mode)) {
                step(trainer, 3);
                saboteur = fault;
                long start = System.nanoTime();
                failure = expectThrows(RankFailedException.class, () -> failing.accept(trainer));
                double seconds = (System.nanoTime() - start) / 1e9;
                assertTrue(seconds < SECONDS, "it took " + seconds + " s");
                assertIdle();
            } finally {
                saboteur = UnaryOperator.identity();
            }
            for (Thread thread : threads.values()) {
                thread.join(1000); // to return from what it has finished
                assertFalse(thread.isAlive(), thread.getName());
            }
            assertWeights(model, before);
            try (ParallelTrainer trainer = open(model, mode)) {
                step(trainer, 3);
            }
            assertTrained(model, before);
            return failure;
        }
    }

    private ParallelTrainer open(Model model, ParallelMode mode) {
        DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(mode).setRanks(RANKS).optTimeout(timeout).build();
        ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
        Engine.getInstance().setRandomSeed(3);
        trainer.initialize(new Shape(8, 6));
        return trainer;
    }

    private Model model() {
        Block block = sequence(linear(8), new LambdaBlock(this::pass), head(10));
        Model model = Model.newInstance("net");
        model.setBlock(block);
        return model;
    }

    private NDList pass(NDList input) {
        ParallelContext context = ParallelContext.current();
        if (context == null) {
            return input; // DJL asks for the shape of the output
        }
        int rank = context.getRank();
        threads.put(rank, Thread.currentThread());
        return rank == VICTIM ? new NDList(saboteur.apply(input.head())) : input;
    }

    private static NDList data(Trainer trainer) {
        return new NDList(trainer.getManager().ones(new Shape(8, 6)));
    }

    private static NDList labels(Trainer trainer) {
        return new NDList(trainer.getManager().create(new long[] {0, 1, 2, 3, 4, 5, 6, 9}));
    }

    private static void step(Trainer trainer, int times) {
        for (int i = 0; i < times; i++) {
            NDList labels = labels(trainer);
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList output = trainer.forward(data(trainer), labels);
                Loss loss = trainer.getLoss();
                collector.backward(loss.evaluate(labels, output));
            }
            trainer.step();
        }
    }

    /** A rank that has stopped waits for the next task of its thread. */
    private void assertIdle() {
        assertEquals(threads.size(), RANKS);
        for (Thread thread : threads.values()) {
            long end = System.nanoTime() + 1_000_000_000L; // to return from what it has finished
            while (!isIdle(thread)) {
                assertTrue(System.nanoTime() < end, thread.getName() + " is not idle");
                Thread.onSpinWait();
            }
        }
    }

    private static boolean isIdle(Thread thread) {
        boolean waits = false;
        for (StackTraceElement frame : thread.getStackTrace()) {
            if (frame.getClassName().startsWith("io.djltp")) {
                return false;
            }
            waits |= frame.getMethodName().equals("getTask");
        }
        return waits;
    }

    /** The weights of the same model, trained in the same way without a failure. */
    private List<float[]> weightsOfTwin(ParallelMode mode) {
        try (Model model = model()) {
            try (ParallelTrainer trainer = open(model, mode)) {
                step(trainer, 3);
            }
            return weights(model.getBlock());
        }
    }

    private static void assertWeights(Model model, List<float[]> expected) {
        List<float[]> weights = weights(model.getBlock());
        assertAllBitEqual(weights, expected, "parameter");
    }

    private static void assertTrained(Model model, List<float[]> before) {
        List<float[]> weights = weights(model.getBlock());
        for (int i = 0; i < weights.size(); i++) {
            float change = 0;
            for (int j = 0; j < weights.get(i).length; j++) {
                change = Math.max(change, Math.abs(weights.get(i)[j] - before.get(i)[j]));
            }
            assertTrue(change > 0 && change < 1, "parameter " + i + ": " + change);
        }
    }
}
