package io.djltp.head;

import io.djltp.torch.Autograd;
import io.djltp.torch.OpenMpTeam;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;

public class WorkerThreadsTest {

    @Test(timeOut = 60_000)
    public void worksWithoutATeamToo() {
        try (WorkerThreads workers = new WorkerThreads(2, null)) {
            Assert.assertEquals(workers.count(), 2);
            Thread[] threads = new Thread[2];
            int[] counts = new int[2];
            for (int round = 0; round < 3; round++) {
                workers.run(
                        2,
                        i -> {
                            threads[i] = Thread.currentThread();
                            counts[i] += Autograd.getThreads();
                        });
            }
            Assert.assertEquals(new HashSet<>(List.of(threads)).size(), 2);
            Assert.assertEquals(counts, new int[] {3, 3}, "an operation has one thread");
        }
    }

    @Test(timeOut = 60_000)
    public void aFailureArrivesWhenAllHaveEnded() {
        AtomicInteger ended = new AtomicInteger();
        try (WorkerThreads workers = new WorkerThreads(2, null)) {
            Assert.assertThrows(
                    ArithmeticException.class,
                    () ->
                            workers.run(
                                    2,
                                    i -> {
                                        if (i == 0) {
                                            throw new ArithmeticException();
                                        }
                                        ended.incrementAndGet();
                                    }));
        }
        Assert.assertEquals(ended.get(), 1);
    }

    @Test(timeOut = 60_000)
    public void aSingleOneIsTheCaller() {
        try (WorkerThreads workers = new WorkerThreads(1)) {
            workers.run(
                    1,
                    i -> {
                        Assert.assertEquals(i, 0);
                        Assert.assertTrue(
                                Thread.currentThread().getName().contains("aSingleOne"),
                                Thread.currentThread().getName());
                    });
        }
    }

    @DataProvider
    public Object[][] teams() {
        return new Object[][] {{null}, {OpenMpTeam.create().orElse(null)}};
    }

    /** Of several failures one arrives, and has the others. */
    @Test(dataProvider = "teams", timeOut = 60_000)
    public void noFailureIsLost(OpenMpTeam team) {
        try (WorkerThreads workers = new WorkerThreads(2, team)) {
            ArithmeticException failure =
                    Assert.expectThrows(
                            ArithmeticException.class,
                            () ->
                                    workers.run(
                                            2,
                                            i -> {
                                                throw new ArithmeticException("worker " + i);
                                            }));
            Assert.assertEquals(failure.getSuppressed().length, 1);
            Set<String> texts =
                    Set.of(failure.getMessage(), failure.getSuppressed()[0].getMessage());
            Assert.assertEquals(texts, Set.of("worker 0", "worker 1"));
        }
    }
}
