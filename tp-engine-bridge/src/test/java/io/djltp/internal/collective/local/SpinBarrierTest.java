package io.djltp.internal.collective.local;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;

/** Threads that meet: nobody goes on early, nobody is left behind, who waits long sleeps. */
public class SpinBarrierTest {

    private static final int PROCESSORS = Runtime.getRuntime().availableProcessors();

    /** Returns groups with a processor for each rank, and with too few. */
    @DataProvider
    public static Object[][] sizes() {
        return new Object[][] {{2}, {PROCESSORS + 2}};
    }

    /** The late one is waited for asleep: 0.4 s of waiting take next to no processor time. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void whoWaitsLongSleeps(int size) throws Exception {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        AtomicLong spent = new AtomicLong();
        RankThreads.outcomes(
                LocalCommunicator.create(size),
                (communicator, manager) -> {
                    var array = manager.ones(new Shape(10));
                    communicator.allReduce(array, ReduceOp.SUM); // loads what is to be loaded
                    long begin = threads.getCurrentThreadCpuTime();
                    if (communicator.getRank() == 0) {
                        Thread.sleep(400);
                        begin = threads.getCurrentThreadCpuTime();
                    }
                    communicator.allReduce(array, ReduceOp.SUM);
                    spent.accumulateAndGet(threads.getCurrentThreadCpuTime() - begin, Math::max);
                });
        Assert.assertTrue(spent.get() < 100_000_000, spent.get() / 1e6 + " ms");
    }

    /** With fewer processors than ranks, what one keeps busy may be what another waits for. */
    @Test(timeOut = 60_000)
    public void nobodySpinsWithoutAProcessorOfItsOwn() {
        AtomicInteger looks = new AtomicInteger();
        SpinBarrier asleep = new SpinBarrier(2, false, () -> looks.incrementAndGet() < 0);
        asleep.spin(asleep.number());
        Assert.assertEquals(looks.get(), 0);
        SpinBarrier awake = new SpinBarrier(2, true, () -> looks.incrementAndGet() < 0);
        awake.spin(awake.number());
        Assert.assertTrue(looks.get() > 0);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void allComeBeforeAnyoneGoesOn(int size) throws Exception {
        int rounds = 3000;
        SpinBarrier meeting = new SpinBarrier(size, size <= PROCESSORS, () -> false);
        AtomicIntegerArray come = new AtomicIntegerArray(rounds);
        AtomicInteger early = new AtomicInteger();
        Thread[] threads = new Thread[size];
        for (int i = 0; i < size; i++) {
            threads[i] =
                    new Thread(
                            () -> {
                                for (int round = 0; round < rounds; round++) {
                                    come.incrementAndGet(round);
                                    Assert.assertEquals(meeting.number(), round);
                                    Assert.assertTrue(meeting.arrive(() -> true));
                                    meeting.spin(round);
                                    meeting.sleepUntilEnd(round);
                                    early.addAndGet(size - come.get(round));
                                }
                            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Assert.assertEquals(meeting.number(), rounds);
        Assert.assertEquals(early.get(), 0);
    }

    /** Either all have met, or the meeting is broken for all: whoever is first. */
    @Test(timeOut = 60_000)
    public void givingUpAndComingLastExcludeEachOther() throws Exception {
        int broken = 0;
        for (int i = 0; i < 2000; i++) {
            SpinBarrier meeting = new SpinBarrier(2, true, () -> false);
            Assert.assertTrue(meeting.arrive(() -> true));
            CountDownLatch ready = new CountDownLatch(1);
            boolean[] came = new boolean[1];
            Thread last =
                    new Thread(
                            () -> {
                                ready.countDown();
                                came[0] = meeting.arrive(() -> true);
                            });
            last.start();
            ready.await();
            boolean gaveUp = meeting.breakBarrier(0);
            last.join();
            Assert.assertEquals(gaveUp, !came[0]);
            Assert.assertEquals(meeting.hasEnded(0), came[0]);
            broken += gaveUp ? 1 : 0;
        }
        Assert.assertTrue(broken > 0, "never first");
    }

    @Test(timeOut = 60_000)
    public void aRefusedMeetingDoesNotEnd() {
        List<Communicator> group = LocalCommunicator.create(1);
        group.get(0).barrier(); // one rank meets itself
        group.get(0).close();
        SpinBarrier meeting = new SpinBarrier(1, false, () -> false);
        Assert.assertFalse(meeting.arrive(() -> false));
        Assert.assertFalse(meeting.hasEnded(0));
        Assert.assertTrue(meeting.arrive(() -> true));
        Assert.assertTrue(meeting.hasEnded(0));
    }
}
