package io.djltp.job;

import io.djltp.job.Jobs.Meeting;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryUsage;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** A job comes together and runs while 10,000 connections of strangers come to its port. */
public class MalformedConnectionsTest {

    private static final Logger logger = LoggerFactory.getLogger(MalformedConnectionsTest.class);

    private static final int WAVES = 25;
    private static final int WAVE = 400;
    private static final long MIB = 1 << 20;

    // 3 processes: 2 accepting threads, a watch and 4 for its links in the master; in each of the
    // others one accepting, 2 for the link, and the watch that ends with the wait and the next
    private static final int MAX_THREADS = 7 + 2 * 5;

    private int mostThreads;

    @Test(timeOut = 60_000)
    public void strangersDoNoHarm() throws Exception {
        JobOptions.Builder options = Jobs.options(6).optTimeout(Duration.ofSeconds(30));
        Meeting meeting = new Meeting(3, options);
        Strangers strangers = new Strangers(meeting.port);
        int threads = jobThreads(); // those that other tests have left
        long heap = usedHeap();
        long direct = usedDirect();
        FutureTask<Void> attack = new FutureTask<>(() -> attack(strangers));
        new Thread(attack).start();
        for (int i = 1; i < 3; i++) {
            int process = i;
            meeting.with(
                    () -> {
                        // in the middle of the flood, one after the other
                        while (strangers.made() < process * 4 * WAVE) {
                            TimeUnit.MILLISECONDS.sleep(1);
                        }
                        return Jobs.join(process, 3, meeting.port, options.build());
                    });
        }
        List<Job> jobs = meeting.jobs();
        int atStart = strangers.made();
        int rounds = 0;
        while (!attack.isDone()) {
            exchange(jobs, rounds++);
        }
        attack.get();
        exchange(jobs, rounds++);
        long heapGrowth = usedHeap() - heap;
        long directGrowth = usedDirect() - direct;
        strangers.closeAll();
        logger.info(
                "{} connections, {} before the start; {} exchanges meanwhile; {} threads at most;"
                        + " heap +{} KiB, direct memory +{} KiB",
                strangers.made(),
                atStart,
                rounds,
                mostThreads - threads,
                heapGrowth / 1024,
                directGrowth / 1024);
        Assert.assertEquals(strangers.made(), WAVES * WAVE);
        Assert.assertTrue(atStart >= 8 * WAVE && atStart < WAVES * WAVE, "" + atStart);
        Assert.assertTrue(rounds > 10, "" + rounds);
        Assert.assertTrue(mostThreads <= threads + MAX_THREADS, "" + mostThreads);
        Assert.assertTrue(heapGrowth < 16 * MIB, "" + heapGrowth);
        Assert.assertTrue(directGrowth < 16 * MIB, "" + directGrowth);
        for (Job job : jobs) {
            Assert.assertNull(job.awaitFailure(Duration.ofMillis(50)));
        }
        Jobs.closeAll(jobs);
    }

    private Void attack(Strangers strangers) throws Exception {
        for (int i = 0; i < WAVES; i++) {
            strangers.wave(WAVE);
            mostThreads = Math.max(mostThreads, jobThreads());
        }
        return null;
    }

    private static void exchange(List<Job> jobs, int round) throws Exception {
        Jobs.inParallel(
                jobs,
                job -> {
                    byte[] mine = {(byte) round, (byte) job.getProcess()};
                    byte[][] all = job.exchange("round " + round, mine);
                    for (int i = 0; i < all.length; i++) {
                        Assert.assertEquals(all[i], new byte[] {(byte) round, (byte) i});
                    }
                    return null;
                });
    }

    private static int jobThreads() {
        return (int)
                Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> thread.getName().startsWith(JobState.THREAD_PREFIX))
                        .count();
    }

    private static long usedHeap() {
        System.gc();
        MemoryUsage usage = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage();
        return usage.getUsed();
    }

    private static long usedDirect() {
        return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                .filter(pool -> pool.getName().equals("direct"))
                .mapToLong(BufferPoolMXBean::getMemoryUsed)
                .sum();
    }
}
