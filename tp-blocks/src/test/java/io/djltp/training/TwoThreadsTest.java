package io.djltp.training;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.internal.rank.ParallelContext;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/**
 * A trainer that a second thread calls while a first one is in a call throws for the second, and
 * the first goes on. Threads that take turns may share it, and every call waits for all ranks.
 */
public class TwoThreadsTest {

    private static final Shape INPUT = new Shape(4, 5);
    private static final Network.Batches BATCHES = Network.batches("4x5", "4x3");
    private static final int CLASSES = 400_000; // an update takes longer than to look at a weight

    private volatile CountDownLatch inForward;
    private volatile CountDownLatch goOn;
    private final AtomicInteger forwards = new AtomicInteger();

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel(1, 2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aCallDuringACall(TrainerKind kind) {
        Step step =
                (trainer, batch) -> {
                    inForward = new CountDownLatch(1);
                    goOn = new CountDownLatch(1);
                    CompletableFuture<Float> first =
                            CompletableFuture.supplyAsync(
                                    () -> TrainingRun.step(trainer, batch[0], batch[1]));
                    await(inForward);
                    Path never = Path.of("never");
                    busy("forward", () -> trainer.forward(batch[0]));
                    busy("evaluate", () -> trainer.evaluate(batch[0]));
                    busy("step", trainer::step);
                    busy("initialize", () -> trainer.initialize(INPUT));
                    busy("save", () -> ((ParallelTrainer) trainer).save(never, "net"));
                    busy("newGradientCollector", trainer::newGradientCollector);
                    goOn.countDown();
                    return first.join();
                };
        run(kind, step).assertSame(run(PLAIN, TwoThreadsTest::train), 1e-5);
    }

    private static void busy(String call, Assert.ThrowingRunnable second) {
        throwsState(second, call, Thread.currentThread().getName(), "lock");
    }

    /** One thread computes the gradients of a step, another makes it, for each step other ones. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void threadsTakeTurns(TrainerKind kind) {
        Step step =
                (trainer, batch) -> {
                    float loss = inNewThread(() -> backward(trainer, batch[0], batch[1]));
                    inNewThread(
                            () -> {
                                trainer.step();
                                return loss;
                            });
                    return loss;
                };
        run(kind, step).assertSame(run(PLAIN, TwoThreadsTest::train), 1e-5);
    }

    /** A call that throws is over. */
    @Test(timeOut = 60_000)
    public void afterAnErrorAnotherThreadMayCall() {
        run(
                TrainerKind.mesh(1, 2),
                (trainer, batch) -> {
                    throwsState(trainer::step);
                    return inNewThread(() -> train(trainer, batch));
                });
    }

    /** The file has the weights of the one step, and the model has them too. */
    @Test(timeOut = 120_000)
    public void closeWhileAnotherThreadSaves() throws Exception {
        Path folder = TestFolder.create();
        for (int i = 0; i < 30; i++) {
            boolean ofModel = i % 2 == 1;
            try (Model model = large()) {
                ParallelTrainer trainer = open(model);
                trainer.initialize(INPUT);
                closeDuring(
                        trainer,
                        () -> {
                            if (ofModel) {
                                model.save(folder, "net");
                            } else {
                                trainer.save(folder, "net");
                            }
                            return null;
                        },
                        i);
                for (float[] weights : weights(model.getBlock())) {
                    for (float number : weights) {
                        assertFalse(Float.isNaN(number));
                    }
                }
            }
        }
    }

    /** The model is free for the next trainer. */
    @Test(timeOut = 120_000)
    public void closeWhileAnotherThreadInitializes() throws Exception {
        for (int i = 0; i < 60; i++) {
            try (Model model = large()) {
                ParallelTrainer trainer = open(model);
                closeDuring(
                        trainer,
                        () -> {
                            trainer.initialize(INPUT);
                            return null;
                        },
                        i);
                model.getBlock().clear();
                try (ParallelTrainer next = open(model)) {
                    next.initialize(INPUT);
                }
            }
        }
    }

    private static Model large() {
        Model model = Model.newInstance("net");
        model.setBlock(sequence(linear(50), first(true, 400), row(true, 50)));
        return model;
    }

    private static ParallelTrainer open(Model model) {
        return (ParallelTrainer) TENSOR_2.open(model, Configs.of(new HalfSquareLoss()));
    }

    /** Closed before, or while it is on its way. */
    private static void closeDuring(ParallelTrainer trainer, Callable<Void> call, int delay)
            throws InterruptedException {
        CompletableFuture<Void> running = new CompletableFuture<>();
        new Thread(
                        () -> {
                            try {
                                running.complete(call.call());
                            } catch (Exception e) {
                                running.completeExceptionally(e);
                            }
                        })
                .start();
        TimeUnit.MICROSECONDS.sleep(delay * 100L);
        trainer.close();
        try {
            running.join();
        } catch (CompletionException e) {
            assertTrue(e.getCause() instanceof IllegalStateException, "" + e);
        }
    }

    /** A call that hangs in a block of the user's must not keep close() waiting for ever. */
    @Test(timeOut = 60_000)
    public void closeEndsACallOfAnotherThread() {
        CountDownLatch hanging = new CountDownLatch(2);
        ParallelTrainer[] trainer = new ParallelTrainer[1];
        AtomicBoolean hangs = new AtomicBoolean();
        Block waits =
                new LambdaBlock(
                        input -> {
                            if (hangs.get()) {
                                hanging.countDown();
                                while (!trainer[0].getRanks().isOver()) {
                                    Thread.onSpinWait();
                                }
                            }
                            return input;
                        });
        TrainingRun.of(
                TENSOR_2,
                sequence(linear(4), waits, first(true, 6), row(true, 3)),
                new HalfSquareLoss(),
                INPUT,
                (opened, manager, numbers) -> {
                    trainer[0] = (ParallelTrainer) opened;
                    steps(opened, numbers, BATCHES, 0, 3); // replicas are compared in close()
                    hangs.set(true);
                    NDList data = BATCHES.make(manager, 3)[0];
                    CompletableFuture<NDList> running =
                            CompletableFuture.supplyAsync(() -> opened.forward(data));
                    await(hanging);
                    opened.close();
                    assertThrows(CompletionException.class, running::join);
                    assertTrue(trainer[0].getRanks().isStopped());
                });
    }

    @DataProvider
    public Object[][] several() {
        return TrainerKind.parallel(2, 4);
    }

    /** DJL's own multi-device training with an executor does not wait (DJL issue 2459). */
    @Test(dataProvider = "several", timeOut = 60_000)
    public void everyCallWaitsForTheSlowestRank(TrainerKind kind) {
        ExecutorService executor = Executors.newFixedThreadPool(2);
        DefaultTrainingConfig config =
                Configs.of(new VocabParallelCrossEntropyLoss(), Optimizer.adam().build())
                        .optExecutorService(executor);
        TrainingRun.of(
                kind,
                sequence(new LambdaBlock(this::slow), head(CLASSES)),
                config,
                new Shape(8, 3),
                (trainer, manager, numbers) -> {
                    ArrayDataset dataset =
                            new ArrayDataset.Builder()
                                    .setData(manager.ones(new Shape(16, 3)))
                                    .optLabels(manager.zeros(new Shape(16), DataType.INT64))
                                    .setSampling(8, false)
                                    .build();
                    // DJL runs a function once more to know the shape of its result
                    trainer.forward(new NDList(manager.ones(new Shape(8, 3))));
                    forwards.set(0);
                    int steps = 0;
                    for (Batch batch : trainer.iterateDataset(dataset)) {
                        EasyTrain.trainBatch(trainer, batch);
                        assertEquals(forwards.get(), ++steps * kind.ranks());
                        float[] before = lastWeights(trainer, kind.ranks());
                        trainer.step();
                        float[] after = lastWeights(trainer, kind.ranks());
                        for (int rank = 0; rank < kind.ranks(); rank++) {
                            assertNotEquals(after[rank], before[rank], "rank " + rank);
                        }
                        Thread.sleep(100);
                        assertEquals(lastWeights(trainer, kind.ranks()), after);
                        batch.close();
                    }
                    assertEquals(steps, 2);
                });
        executor.shutdown();
    }

    /** Returns the element of each rank's weight that the rank updates last. */
    private static float[] lastWeights(Trainer trainer, int ranks) {
        float[] last = new float[ranks];
        for (int rank = 0; rank < ranks; rank++) {
            NDArray values = held(trainer, rank, 0);
            last[rank] = values.get(values.getShape().get(0) - 1).getFloat(2);
        }
        return last;
    }

    private NDList slow(NDList input) {
        ParallelContext context = ParallelContext.current();
        if (context != null && context.getRank() == 1) {
            Unchecked.run(() -> Thread.sleep(100));
        }
        forwards.incrementAndGet();
        return input;
    }

    private interface Step {
        float run(Trainer trainer, NDList[] batch);
    }

    private TrainingRun run(TrainerKind kind, Step step) {
        inForward = null;
        boolean cut = kind.isParallel();
        return TrainingRun.of(
                kind,
                sequence(linear(4), new LambdaBlock(this::pass), first(cut, 6), row(cut, 3)),
                new HalfSquareLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 4; i++) {
                        numbers.add(step.run(trainer, BATCHES.make(manager, i)));
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

    private static float train(Trainer trainer, NDList[] batch) {
        return step(trainer, batch[0], batch[1]);
    }

    private static void await(CountDownLatch latch) {
        Unchecked.run(() -> assertTrue(latch.await(30, TimeUnit.SECONDS)));
    }

    private static <T> T inNewThread(Supplier<T> task) {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try {
            return CompletableFuture.supplyAsync(task, thread).join();
        } finally {
            thread.shutdown();
        }
    }
}
