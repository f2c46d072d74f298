package io.djltp.internal.rank;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNull;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDScope;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.internal.torch.TorchScope;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.Unchecked;

import org.testng.annotations.Test;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;

/** The ranks of a JVM are threads of their own, which run a task together and stop together. */
@SuppressWarnings("try") // a scope is used by being open
public class RankPoolTest {

    @Test(timeOut = 60_000)
    public void everyRankHasAThreadAndAContextThatStay() {
        try (RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 8))) {
            List<Thread> threads = pool.run(context -> Thread.currentThread());
            assertEquals(threads.stream().distinct().count(), 8);
            for (int i = 0; i < 3; i++) {
                assertEquals(pool.run(context -> Thread.currentThread()), threads);
                // in the order of the ranks
                assertEquals(
                        pool.run(context -> ParallelContext.current().getRank()),
                        IntStream.range(0, 8).boxed().toList());
            }
            assertNull(ParallelContext.current()); // this is no rank
        }
    }

    /**
     * One rank without others computes in the thread that created the pool, if that calls, and is
     * the same there as in its own thread.
     */
    @Test(timeOut = 60_000)
    public void aRankWithoutOthersComputesInTheThreadOfItsCreator() {
        int before = Autograd.getThreads();
        ParallelConfig config =
                Ranks.builder(ParallelMode.TENSOR, 1).optThreadsPerRank(before + 1).build();
        try (RankPool pool = new RankPool(config);
                Autograd.GradMode none = Autograd.gradMode(false)) {
            RankPool.RankTask<Thread> task =
                    context -> {
                        assertSame(ParallelContext.current(), context);
                        assertEquals(Autograd.getThreads(), before + 1);
                        assertTrue(Autograd.isRecording());
                        return Thread.currentThread();
                    };
            Thread own = Thread.currentThread();
            assertSame(pool.run(task).get(0), own);
            assertSame(pool.run(context -> pool.run(task).get(0)).get(0), own, "within a task");
            try (Autograd.GradMode recording = Autograd.gradMode(true);
                    JavaMemory noted = JavaMemory.keep()) { // as within a gradient collector
                assertSame(pool.run(task).get(0), own);
            }
            assertNull(ParallelContext.current());
            assertEquals(Autograd.getThreads(), before);
            assertFalse(Autograd.isRecording());
            // another thread would get threads of its own, and a scope free what the rank keeps
            Thread ofRank = CompletableFuture.supplyAsync(() -> pool.run(task).get(0)).join();
            assertEquals(ofRank.getName(), "tp-rank-0");
            try (NDScope scope = new NDScope()) {
                assertSame(pool.run(task).get(0), ofRank);
            }
            try (TorchScope scope = TorchScope.open()) {
                assertSame(pool.run(task).get(0), ofRank);
            }
            assertSame(pool.run(task).get(0), own);
        }
    }

    /** What a task throws is told in the thread of the creator as in that of the rank. */
    @Test(timeOut = 60_000)
    public void failuresInTheThreadOfTheCreatorAreThoseOfTheRank() {
        IllegalArgumentException thrown = new IllegalArgumentException("this");
        RankPool.RankTask<Object> failing =
                context -> {
                    throw thrown;
                };
        try (RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 1))) {
            assertSame(
                    expectThrows(IllegalArgumentException.class, () -> pool.runOrRefuse(failing))
                            .getCause(),
                    thrown);
            assertEquals(pool.run(ParallelContext::getRank), List.of(0), "it goes on");
            for (int i = 0; i < 2; i++) { // then, and later
                assertSame(
                        expectThrows(RankFailedException.class, () -> pool.run(failing)).getCause(),
                        thrown);
            }
        }
        try (RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 1))) {
            pool.setInterruptible(false);
            Thread.currentThread().interrupt();
            assertEquals(pool.run(ParallelContext::getRank), List.of(0));
            pool.setInterruptible(true);
            IllegalStateException e =
                    expectThrows(
                            IllegalStateException.class, () -> pool.run(ParallelContext::getRank));
            assertTrue(Thread.interrupted(), "it stays so");
            assertTrue(e.getMessage().startsWith("Interrupted while the ranks"), e.getMessage());
        }
    }

    /** What a task in the thread of the creator works on is there until it ends. */
    @Test(timeOut = 60_000)
    public void closingWaitsForTheThreadOfTheCreator() throws InterruptedException {
        RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 1));
        CountDownLatch running = new CountDownLatch(1);
        CompletableFuture<Void> closed =
                CompletableFuture.runAsync(
                        () -> {
                            Unchecked.run(() -> running.await());
                            pool.close();
                        });
        pool.runAll(
                context -> {
                    running.countDown();
                    expectThrows(
                            TimeoutException.class, () -> closed.get(300, TimeUnit.MILLISECONDS));
                });
        closed.join();
        assertTrue(pool.isStopped());
        Refusals.throwsState(() -> pool.run(ParallelContext::getRank));
    }

    /** In DATA mode a rank has the layers for itself, in TENSOR mode the batch. */
    @Test(timeOut = 60_000)
    public void theModeSaysWhoComputesTogether() {
        int[][] sizes = {{4, 1}, {1, 4}, {4, 4}}; // tensor group, data group
        for (ParallelMode mode : ParallelMode.values()) {
            Ranks.run(
                    mode,
                    4,
                    context -> {
                        int[] expected = sizes[mode.ordinal()];
                        assertEquals(context.getTensorGroup().getSize(), expected[0]);
                        assertEquals(context.getDataGroup().getSize(), expected[1]);
                        assertEquals(context.getSize(), 4);
                        return null;
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void theFirstExceptionIsTheCauseAndTheOthersStop() {
        try (RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 4))) {
            IllegalStateException thrown = new IllegalStateException("first");
            RankFailedException e =
                    expectThrows(
                            RankFailedException.class,
                            () ->
                                    pool.run(
                                            context -> {
                                                if (context.getRank() == 3) {
                                                    throw thrown;
                                                }
                                                context.getTensorGroup().barrier();
                                                return null;
                                            }));
            assertEquals(e.getRank(), 3);
            assertSame(e.getCause(), thrown);
        }
    }

    /** Ranks that wait for each other are not waited for. */
    @Test(timeOut = 60_000)
    public void closingEndsATaskThatRuns() throws InterruptedException {
        RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 2));
        CountDownLatch running = new CountDownLatch(2); // both have been started
        CompletableFuture<?> task =
                CompletableFuture.runAsync(
                        () ->
                                pool.run(
                                        context -> {
                                            running.countDown();
                                            while (true) {
                                                context.getTensorGroup().barrier();
                                            }
                                        }));
        running.await();
        long start = System.nanoTime();
        pool.close();
        assertTrue(System.nanoTime() - start < 5_000_000_000L, "not at once");
        assertTrue(pool.isStopped());
        ExecutionException e = expectThrows(ExecutionException.class, task::get);
        assertTrue(e.getCause() instanceof RankFailedException, "" + e.getCause());
        assertTrue(e.getMessage().contains("the ranks were closed"), e.getMessage());
    }

    /** Only the ranks compute with their number of threads. */
    @Test(timeOut = 60_000)
    public void threadsOfOthersStayAsTheyWere() {
        int before =
                CompletableFuture.supplyAsync(
                                Autograd::getThreads, task -> new Thread(task).start())
                        .join();
        ParallelConfig config =
                Ranks.builder(ParallelMode.TENSOR, 2).optThreadsPerRank(before + 3).build();
        try (RankPool pool = new RankPool(config)) {
            assertEquals(
                    pool.run(context -> Autograd.getThreads()), List.of(before + 3, before + 3));
            int fresh =
                    CompletableFuture.supplyAsync(
                                    Autograd::getThreads, task -> new Thread(task).start())
                            .join();
            assertEquals(fresh, before);
        }
    }
}
