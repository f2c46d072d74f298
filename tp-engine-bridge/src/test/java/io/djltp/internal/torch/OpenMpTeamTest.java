package io.djltp.internal.torch;

import org.bytedeco.pytorch.global.torch;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;

public class OpenMpTeamTest {

    private static final int THREADS = 3; // of the thread of a test, which is its own

    private OpenMpTeam team;

    @BeforeMethod
    public void createTeam() {
        team = OpenMpTeam.create().orElseThrow(() -> new SkipException("No GNU OpenMP"));
    }

    @AfterMethod(alwaysRun = true)
    public void closeTeam() {
        if (team != null) {
            team.close();
        }
    }

    @Test(timeOut = 60_000)
    public void runsEveryTaskOnceAndTheFirstInTheCaller() {
        Autograd.setThreads(THREADS);
        for (int count : new int[] {1, 2, 3, 7}) {
            AtomicIntegerArray runs = new AtomicIntegerArray(count);
            Thread[] threads = new Thread[count];
            team.run(
                    count,
                    i -> {
                        runs.incrementAndGet(i);
                        threads[i] = Thread.currentThread();
                    });
            for (int i = 0; i < count; i++) {
                Assert.assertEquals(runs.get(i), 1, count + " tasks");
            }
            Assert.assertSame(threads[0], Thread.currentThread());
            Assert.assertEquals(new HashSet<>(List.of(threads)).size(), Math.min(count, THREADS));
        }
    }

    @Test(timeOut = 60_000)
    public void givesATaskTheSameThreadEachTime() {
        Autograd.setThreads(THREADS);
        Thread[] first = new Thread[THREADS];
        team.run(THREADS, i -> first[i] = Thread.currentThread());
        for (int round = 0; round < 10; round++) {
            team.run(THREADS, i -> Assert.assertSame(Thread.currentThread(), first[i]));
        }
        Assert.assertTrue(first[1].isDaemon(), "it would keep the virtual machine running");
    }

    @Test(timeOut = 60_000)
    public void operationsOfATaskHaveOneThread() {
        Autograd.setThreads(THREADS);
        Set<Boolean> inside = ConcurrentHashMap.newKeySet();
        team.run(THREADS, i -> inside.add(torch.in_parallel_region()));
        Assert.assertEquals(inside, Set.of(true));
        Assert.assertFalse(torch.in_parallel_region());
        Assert.assertEquals(Autograd.getThreads(), THREADS, "the caller's setting has changed");
    }

    @Test(timeOut = 60_000)
    public void aFailureArrivesWhenAllTasksHaveEnded() {
        Autograd.setThreads(THREADS);
        AtomicIntegerArray ended = new AtomicIntegerArray(3);
        IllegalStateException wanted = new IllegalStateException("task 1");
        IllegalStateException thrown =
                Assert.expectThrows(
                        IllegalStateException.class,
                        () ->
                                team.run(
                                        THREADS,
                                        i -> {
                                            if (i == 1) {
                                                throw wanted;
                                            }
                                            sleep();
                                            ended.set(i, 1);
                                        }));
        Assert.assertSame(thrown, wanted);
        Assert.assertEquals(ended.get(0) + ended.get(2), 2);
        team.run(THREADS, i -> ended.incrementAndGet(i)); // and it goes on
        Assert.assertEquals(ended.get(1), 1);
    }

    private static void sleep() {
        try {
            TimeUnit.MILLISECONDS.sleep(50);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Test(timeOut = 60_000)
    public void threadsHaveTeamsOfTheirOwn() throws Exception {
        List<FutureTask<Set<Thread>>> callers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            FutureTask<Set<Thread>> caller = new FutureTask<>(OpenMpTeamTest::threadsOfATeam);
            new Thread(caller, "caller-" + i).start();
            callers.add(caller);
        }
        Set<Thread> all = ConcurrentHashMap.newKeySet();
        int sum = 0;
        for (FutureTask<Set<Thread>> caller : callers) {
            sum += caller.get().size();
            all.addAll(caller.get());
        }
        Assert.assertEquals(all.size(), sum, "two teams have shared a thread");
        Assert.assertEquals(sum, 4);
        for (Thread thread : all) {
            thread.join(30_000); // they end with the callers
            Assert.assertFalse(thread.isAlive(), thread.getName());
        }
    }

    private static Set<Thread> threadsOfATeam() {
        Autograd.setThreads(2);
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        try (OpenMpTeam own = OpenMpTeam.create().orElseThrow()) {
            for (int round = 0; round < 50; round++) {
                own.run(2, i -> threads.add(Thread.currentThread()));
            }
        }
        return threads;
    }
}
