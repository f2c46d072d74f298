package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainingRun.steps;
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
import ai.djl.nn.LambdaBlock;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.RankThreads;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainingRun;
import io.djltp.testing.Unchecked;

import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.ArrayList;
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
    private static final Network.Batches BATCHES = Network.batches("8x6", "8:10");

    private final ConcurrentMap<Integer, Thread> threads = new ConcurrentHashMap<>();
    private Duration timeout;

    /** A place in the network at which something can be done to what passes. */
    private UnaryOperator<NDArray> saboteur;

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

    private static <T extends Throwable> UnaryOperator<NDArray> throwing(T thrown) {
        return array -> RankFailureTest.<RuntimeException, NDArray>sneak(thrown);
    }

    @SuppressWarnings("unchecked") // for errors and exceptions alike
    private static <E extends Throwable, R> R sneak(Throwable thrown) throws E {
        throw (E) thrown;
    }

    @Test(dataProvider = "modes", timeOut = 60_000)
    public void anExceptionOrAnErrorInForward(ParallelMode mode) throws InterruptedException {
        for (Throwable thrown :
                List.of(
                        new IllegalStateException("no more forward"),
                        new OutOfMemoryError("as good as"))) {
            RankFailedException failure = fail(mode, throwing(thrown));
            assertSame(failure.getCause(), thrown);
            Refusals.assertContains(failure.getMessage(), "rank 2", thrown.getMessage());
            reset();
        }
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
        String message = fail(mode, fault).getCause().getMessage();
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
        String message = fail(mode, fault).getCause().getMessage();
        assertTrue(message.contains("A second backward pass"), message);
    }

    /** The hooks of the mappings communicate: here with ranks that never come. */
    @Test(timeOut = 60_000)
    public void oneRankWaitsInAHookForTheOthers() throws InterruptedException {
        timeout = Duration.ofMillis(1500); // longer than a busy machine delays a rank
        UnaryOperator<NDArray> fault =
                array -> ParallelContext.current().getMappings().copyToRegion(array.mul(2));
        Throwable cause = fail(ParallelMode.TENSOR, fault).getCause();
        // the exception of the hook itself, not libtorch's rendering of it
        assertTrue(cause instanceof CollectiveException, "" + cause);
        Refusals.assertContains(
                cause.getMessage(), "1500 ms .. rank 2 waits in all-reduce .. for rank 0");
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
                            NDList[] batch = BATCHES.make(trainer.getManager(), 0);
                            Communicator group =
                                    trainer.getRanks().getContext(VICTIM).getTensorGroup();
                            TrainingRun.backward(
                                    trainer, batch[0], batch[1], output -> group.abort(lost));
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
                        // a rank does not notice
                        Unchecked.run(() -> goOn.await(200, TimeUnit.MILLISECONDS));
                        return array;
                    };
            assertThrows(RuntimeException.class, () -> step(trainer, 1));
            assertTrue(Thread.interrupted(), "the flag is kept");
            assertIdle();
            saboteur = UnaryOperator.identity();
            throwsState(() -> step(trainer, 1), "Interrupted .. a new trainer");
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
            saboteur = throwing(thrown);
            expectThrows(RankFailedException.class, () -> step(trainer, 1));
            saboteur = UnaryOperator.identity();
            RankFailedException second =
                    expectThrows(RankFailedException.class, () -> step(trainer, 1));
            assertSame(second.getCause(), thrown);
            assertEquals(second.getRank(), VICTIM);
            trainer.close();
            trainer.close(); // a second time is no error
        }
    }

    private RankFailedException fail(ParallelMode mode, UnaryOperator<NDArray> fault)
            throws InterruptedException {
        RankFailedException failure = fail(mode, fault, trainer -> step(trainer, 1));
        assertEquals(failure.getRank(), VICTIM);
        return failure;
    }

    /** Trains three steps, lets one rank fail, and checks what must hold after any failure. */
    private RankFailedException fail(
            ParallelMode mode, UnaryOperator<NDArray> fault, Consumer<ParallelTrainer> failing)
            throws InterruptedException {
        List<float[]> before; // the weights of a twin that is trained without a failure
        try (Model twin = model()) {
            try (ParallelTrainer trainer = open(twin, mode)) {
                step(trainer, 3);
            }
            before = weights(twin.getBlock());
        }
        try (Model model = model()) {
            RankFailedException failure;
            try (ParallelTrainer trainer = open(model, mode)) {
                step(trainer, 3);
                saboteur = fault;
                long start = System.nanoTime();
                failure = expectThrows(RankFailedException.class, () -> failing.accept(trainer));
                double seconds = (System.nanoTime() - start) / 1e9;
                // far below the time-out of a collective operation, which is five minutes
                assertTrue(seconds < 5, "it took " + seconds + " s");
                assertIdle();
            } finally {
                saboteur = UnaryOperator.identity();
            }
            for (Thread thread : threads.values()) {
                thread.join(1000); // to return from what it has finished
                assertFalse(thread.isAlive(), thread.getName());
            }
            assertAllBitEqual(weights(model.getBlock()), before, "parameter");
            try (ParallelTrainer trainer = open(model, mode)) {
                step(trainer, 3);
            }
            List<float[]> trained = weights(model.getBlock());
            for (int i = 0; i < trained.size(); i++) {
                float change = 0;
                for (int j = 0; j < trained.get(i).length; j++) {
                    change = Math.max(change, Math.abs(trained.get(i)[j] - before.get(i)[j]));
                }
                assertTrue(change > 0 && change < 1, "parameter " + i + ": " + change);
            }
            return failure;
        }
    }

    private ParallelTrainer open(Model model, ParallelMode mode) {
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(mode).setRanks(RANKS).optTimeout(timeout).build();
        ParallelTrainer trainer =
                new ParallelTrainer(model, Configs.of(new VocabParallelCrossEntropyLoss()), ranks);
        Engine.getInstance().setRandomSeed(3);
        trainer.initialize(new Shape(8, 6));
        return trainer;
    }

    private Model model() {
        Model model = Model.newInstance("net");
        model.setBlock(sequence(linear(8), new LambdaBlock(this::pass), head(10)));
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

    private static void step(ParallelTrainer trainer, int times) {
        steps(trainer, new ArrayList<>(), BATCHES, 0, times);
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
}
