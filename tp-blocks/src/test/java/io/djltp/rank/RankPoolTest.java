package io.djltp.rank;

import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.Ranks;

import org.testng.Assert;
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
            Assert.assertEquals(threads.stream().distinct().count(), 8);
            for (int i = 0; i < 3; i++) {
                Assert.assertEquals(pool.run(context -> Thread.currentThread()), threads);
                // in the order of the ranks
                Assert.assertEquals(
                        pool.run(context -> ParallelContext.current().getRank()),
                        IntStream.range(0, 8).boxed().toList());
            }
            Assert.assertNull(ParallelContext.current()); // this is no rank
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
                        Assert.assertEquals(context.getTensorGroup().getSize(), expected[0]);
                        Assert.assertEquals(context.getDataGroup().getSize(), expected[1]);
                        Assert.assertEquals(context.getSize(), 4);
                        return null;
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void theFirstExceptionIsTheCauseAndTheOthersStop() {
        try (RankPool pool = new RankPool(Ranks.config(ParallelMode.TENSOR, 4))) {
            IllegalStateException thrown = new IllegalStateException("first");
            RankFailedException e =
                    Assert.expectThrows(
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
            Assert.assertEquals(e.getRank(), 3);
            Assert.assertSame(e.getCause(), thrown);
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
        Assert.assertTrue(System.nanoTime() - start < 5_000_000_000L, "not at once");
        Assert.assertTrue(pool.isStopped());
        ExecutionException e = Assert.expectThrows(ExecutionException.class, task::get);
        Assert.assertTrue(e.getCause() instanceof RankFailedException, "" + e.getCause());
        Assert.assertTrue(e.getMessage().contains("the ranks were closed"), e.getMessage());
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
            Assert.assertEquals(
                    pool.run(context -> Autograd.getThreads()), List.of(before + 3, before + 3));
            int fresh =
                    CompletableFuture.supplyAsync(
                                    Autograd::getThreads, task -> new Thread(task).start())
                            .join();
            Assert.assertEquals(fresh, before);
        }
    }
}
