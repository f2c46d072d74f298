package io.djltp.internal.rank;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Ranks;

import org.testng.annotations.Test;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;

/** The ranks of a JVM are threads of their own, which run a task together and stop together. */
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
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(2)
                        .optThreadsPerRank(before + 3)
                        .build();
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
