package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.util.Pair;
import ai.djl.util.Utils;

import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A trainer that a second thread calls while a first one is in a call refuses the second, and the
 * first goes on. Threads that take turns may share it.
 */
public class TwoThreadsTest {

    private static final Shape INPUT = new Shape(4, 5);
    private static final int STEPS = 4;

    private volatile CountDownLatch inForward;
    private volatile CountDownLatch goOn;

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aCallDuringACallIsRefused(TrainerKind kind) {
        TrainingRun plain = run(PLAIN, TwoThreadsTest::train);
        TrainingRun parallel =
                run(
                        kind,
                        (trainer, manager, step) -> {
                            inForward = new CountDownLatch(1);
                            goOn = new CountDownLatch(1);
                            CompletableFuture<Float> first =
                                    CompletableFuture.supplyAsync(
                                            () -> train(trainer, manager, step));
                            await(inForward);
                            NDList data = data(manager, step);
                            assertRefused("forward", () -> trainer.forward(data));
                            assertRefused("evaluate", () -> trainer.evaluate(data));
                            assertRefused("step", trainer::step);
                            assertRefused("initialize", () -> trainer.initialize(INPUT));
                            assertRefused("save", () -> save((ParallelTrainer) trainer));
                            assertRefused("newGradientCollector", trainer::newGradientCollector);
                            goOn.countDown();
                            return first.join();
                        });
        parallel.assertSame(plain, 1e-5);
    }

    /** One thread computes the gradients of a step, another makes it, for each step other ones. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void threadsTakeTurns(TrainerKind kind) {
        TrainingRun plain = run(PLAIN, TwoThreadsTest::train);
        TrainingRun parallel =
                run(
                        kind,
                        (trainer, manager, step) -> {
                            float loss =
                                    inNewThread(
                                            () ->
                                                    backward(
                                                            trainer,
                                                            data(manager, step).head(),
                                                            labels(manager, step)));
                            inNewThread(
                                    () -> {
                                        trainer.step();
                                        return loss;
                                    });
                            return loss;
                        });
        parallel.assertSame(plain, 1e-5);
    }

    /** The file has the weights of the one step, and the model has them too. */
    @Test(timeOut = 120_000)
    public void closeWhileAnotherThreadSaves() throws Exception {
        Path folder = Files.createTempDirectory("closed");
        try {
            for (int i = 0; i < 30; i++) {
                try (Model model = Model.newInstance("net")) {
                    model.setBlock(sequence(linear(50), first(true, 400), row(true, 50)));
                    ParallelTrainer trainer = open(model);
                    trainer.initialize(INPUT);
                    int kind = i % 2;
                    CompletableFuture<Void> save =
                            CompletableFuture.runAsync(() -> save(kind, trainer, model, folder));
                    TimeUnit.MICROSECONDS.sleep(i * 100L);
                    trainer.close();
                    try {
                        save.join();
                    } catch (CompletionException e) {
                        assertTrue(e.getCause() instanceof IllegalStateException, "" + e);
                    }
                    for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
                        for (float number : named.getValue().getArray().toFloatArray()) {
                            assertFalse(Float.isNaN(number), named.getKey());
                        }
                    }
                }
            }
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static void save(int kind, ParallelTrainer trainer, Model model, Path folder) {
        try {
            if (kind == 0) {
                trainer.save(folder, "net");
            } else {
                model.save(folder, "net");
            }
        } catch (IOException e) {
            throw new CompletionException(e);
        }
    }

    private static ParallelTrainer open(Model model) {
        return new ParallelTrainer(
                model, new DefaultTrainingConfig(new HalfSquareLoss()), TENSOR_2.config());
    }

    /** The model is free for the next trainer. */
    @Test(timeOut = 120_000)
    public void closeWhileAnotherThreadInitializes() throws Exception {
        for (int i = 0; i < 60; i++) {
            try (Model model = Model.newInstance("net")) {
                model.setBlock(sequence(linear(50), first(true, 400), row(true, 50)));
                ParallelTrainer trainer = open(model);
                CompletableFuture<Void> initialize =
                        CompletableFuture.runAsync(() -> trainer.initialize(INPUT));
                TimeUnit.MICROSECONDS.sleep(i * 100L);
                trainer.close();
                try {
                    initialize.join();
                } catch (CompletionException e) {
                    // closed before, or while it was on its way
                }
                model.getBlock().clear();
                try (ParallelTrainer next = open(model)) {
                    next.initialize(INPUT);
                }
            }
        }
    }

    /** A call that throws is over. */
    @Test(timeOut = 60_000)
    public void afterAnErrorAnotherThreadMayCall() {
        run(
                TrainerKind.mesh(1, 2),
                (trainer, manager, step) -> {
                    expectThrows(IllegalStateException.class, trainer::step);
                    return inNewThread(() -> train(trainer, manager, step));
                });
    }

    /** A call that hangs in a block of the user's must not keep close() waiting for ever. */
    @Test(timeOut = 60_000)
    public void closeEndsACallOfAnotherThread() {
        CountDownLatch hanging = new CountDownLatch(2);
        ParallelTrainer[] trainer = new ParallelTrainer[1];
        Block hangs =
                new LambdaBlock(
                        input -> {
                            if (inForward != null) {
                                hanging.countDown();
                                while (!trainer[0].getRanks().isOver()) {
                                    Thread.onSpinWait();
                                }
                            }
                            return input;
                        });
        inForward = null;
        TrainingRun.of(
                (TrainerKind) TrainerKind.parallel(2)[0][0],
                sequence(linear(4), hangs, first(true, 6), row(true, 3)),
                new HalfSquareLoss(),
                INPUT,
                (opened, manager, numbers) -> {
                    trainer[0] = (ParallelTrainer) opened;
                    for (int i = 0; i < 3; i++) { // after which replicas are compared in close()
                        train(opened, manager, i);
                    }
                    inForward = new CountDownLatch(1);
                    NDList data = data(manager, 3);
                    CompletableFuture<NDList> running =
                            CompletableFuture.supplyAsync(() -> opened.forward(data));
                    await(hanging);
                    opened.close();
                    assertThrows(CompletionException.class, running::join);
                    assertTrue(trainer[0].getRanks().isStopped());
                });
    }

    private interface Step {
        float run(Trainer trainer, NDManager manager, int step);
    }

    private TrainingRun run(TrainerKind kind, Step step) {
        inForward = null;
        Block waits = new LambdaBlock(this::pass);
        return TrainingRun.of(
                kind,
                sequence(linear(4), waits, first(kind.isParallel(), 6), row(kind.isParallel(), 3)),
                new HalfSquareLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < STEPS; i++) {
                        numbers.add(step.run(trainer, manager, i));
                    }
                });
    }

    private NDList pass(NDList input) {
        if (inForward != null) {
            inForward.countDown();
            await(goOn);
        }
        return input;
    }

    private static void await(CountDownLatch latch) {
        try {
            assertTrue(latch.await(30, TimeUnit.SECONDS));
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    private static <T> T inNewThread(Supplier<T> task) {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try {
            return CompletableFuture.supplyAsync(task, thread).join();
        } catch (CompletionException e) {
            throw new AssertionError(e.getCause());
        } finally {
            thread.shutdown();
        }
    }

    private static float train(Trainer trainer, NDManager manager, int step) {
        float loss = backward(trainer, data(manager, step).head(), labels(manager, step));
        trainer.step();
        return loss;
    }

    private static NDList data(NDManager manager, int step) {
        return new NDList(random(manager, step, INPUT.getShape()));
    }

    private static NDArray labels(NDManager manager, int step) {
        return random(manager, 10 + step, INPUT.get(0), 3);
    }

    private static void save(ParallelTrainer trainer) throws IOException {
        trainer.save(Path.of("never"), "net");
    }

    private static void assertRefused(String call, Assert.ThrowingRunnable refused) {
        throwsState(refused, call, Thread.currentThread().getName(), "lock");
    }
}
