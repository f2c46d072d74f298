package io.djltp.internal.head;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.OpenMpTeam;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;

public class WorkerThreadsTest {

    @Test(timeOut = 60_000)
    public void worksWithoutATeamToo() {
        try (WorkerThreads workers = new WorkerThreads(2, null)) {
            Assert.assertEquals(workers.count(), 2);
            Thread[] threads = new Thread[2];
            int[] counts = new int[2];
            CyclicBarrier both = new CyclicBarrier(2); // they work side by side
            for (int round = 0; round < 3; round++) {
                workers.run(
                        2,
                        i -> {
                            awaitOther(both);
                            threads[i] = Thread.currentThread();
                            counts[i] += Autograd.getThreads();
                        });
            }
            Assert.assertEquals(new HashSet<>(List.of(threads)).size(), 2);
            Assert.assertEquals(counts, new int[] {3, 3}, "an operation has one thread");
        }
    }

    @Test(timeOut = 60_000)
    public void aSingleOneIsTheCaller() {
        Thread caller = Thread.currentThread();
        try (WorkerThreads workers = new WorkerThreads(1, null)) {
            workers.run(1, i -> Assert.assertSame(Thread.currentThread(), caller));
        }
    }

    @Test(timeOut = 60_000)
    public void failuresArriveWhenAllHaveEnded() {
        for (OpenMpTeam team : new OpenMpTeam[] {null, OpenMpTeam.create().orElse(null)}) {
            AtomicInteger ended = new AtomicInteger();
            try (WorkerThreads workers = new WorkerThreads(2, team)) {
                ArithmeticException failure =
                        Assert.expectThrows(
                                ArithmeticException.class,
                                () ->
                                        workers.run(
                                                2,
                                                i -> {
                                                    ended.incrementAndGet();
                                                    throw new ArithmeticException("task " + i);
                                                }));
                Assert.assertEquals(ended.get(), 2);
                List<String> all =
                        Stream.concat(Stream.of(failure), Arrays.stream(failure.getSuppressed()))
                                .map(Throwable::getMessage)
                                .sorted()
                                .toList();
                Assert.assertEquals(all, List.of("task 0", "task 1"), "team: " + team);
            }
        }
    }

    private static void awaitOther(CyclicBarrier both) {
        Unchecked.run(() -> both.await(30, TimeUnit.SECONDS));
    }
}
