package io.djltp.job;

import io.djltp.testing.FreePort;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;

/** Processes join, and tell each other things. */
public class JobTest {

    @DataProvider
    static Object[][] sizes() {
        return new Object[][] {{1, 1}, {1, 3}, {2, 2}, {2, 6}, {4, 4}};
    }

    @Test(dataProvider = "sizes", timeOut = 30_000)
    public void everyProcessKnowsAllMembers(int processes, int ranks) throws Exception {
        int local = ranks / processes;
        Jobs.each(
                processes,
                ranks,
                job -> {
                    Assert.assertEquals(job.getProcesses(), processes);
                    Assert.assertEquals(job.getRanks(), ranks);
                    Assert.assertEquals(job.getLocalRanks(), local);
                    Assert.assertEquals(job.getFirstRank(), job.getProcess() * local);
                    for (int rank = 0; rank < ranks; rank++) {
                        JobMember member = job.getMember(job.processOf(rank));
                        Assert.assertEquals(member.process(), rank / local);
                        Assert.assertEquals(member.pid(), ProcessHandle.current().pid());
                        Assert.assertEquals(member.firstRank(), rank / local * local);
                    }
                });
    }

    @Test(dataProvider = "sizes", timeOut = 30_000)
    public void everyProcessGetsTheMessagesOfAll(int processes, int ranks) throws Exception {
        Jobs.each(
                processes,
                ranks,
                job -> {
                    for (int i = 0; i < 50; i++) {
                        byte[][] all = job.exchange("round " + i, text(i + "/" + job.getProcess()));
                        Assert.assertEquals(all.length, processes);
                        for (int p = 0; p < processes; p++) {
                            Assert.assertEquals(text(all[p]), i + "/" + p);
                        }
                    }
                    job.check("ready", null);
                });
    }

    @Test(timeOut = 30_000)
    public void messagesMayBeEmptyOrLarge() throws Exception {
        byte[] large = new byte[Job.MAX_EXCHANGE];
        new Random(1).nextBytes(large);
        Jobs.each(
                3,
                3,
                job -> {
                    byte[] mine = job.getProcess() == 1 ? new byte[0] : large;
                    byte[][] all = job.exchange("sizes", mine);
                    Assert.assertEquals(all[0], large);
                    Assert.assertEquals(all[1], new byte[0]);
                    Assert.assertEquals(all[2], large);
                    Jobs.assertThrows(
                            IllegalArgumentException.class,
                            "The message of 1048577 bytes .* is larger than 1048576: send less",
                            () -> job.exchange("x", new byte[large.length + 1]));
                    job.check("still in step", null);
                });
    }

    @Test(timeOut = 30_000)
    public void aCheckNamesEveryProcessThatIsNotReady() throws Exception {
        Jobs.each(
                3,
                6,
                job -> {
                    int p = job.getProcess();
                    JobFailedException e =
                            Jobs.assertFails(
                                    "start failed on process 1 \\(ranks 2-3, pid .*\\): no GPU 1;"
                                            + " process 2 \\(ranks 4-5, pid .*\\): no GPU 2",
                                    () -> job.check("start", p == 0 ? null : "no GPU " + p));
                    Assert.assertEquals(e.getProcess(), -1);
                    Assert.assertNull(job.awaitFailure(Duration.ZERO), "the job goes on");
                    job.check("again", null);
                });
    }

    @Test(timeOut = 30_000)
    public void differentExchangesAreAnErrorOnAll() throws Exception {
        Jobs.each(
                3,
                3,
                job ->
                        Jobs.assertFails(
                                "process 0 \\(.*\\) is in the exchange 'a', but process 1 \\(.*\\)"
                                        + " in 'b': call the same on all processes, in the same"
                                        + " order and one thread",
                                () ->
                                        job.exchange(
                                                job.getProcess() == 1 ? "b" : "a", new byte[1])));
    }

    @Test(timeOut = 30_000)
    public void whoDoesNotComeToAnExchangeIsNamed() throws Exception {
        // the status is told within half a second
        Duration time = Duration.ofSeconds(2);
        JobOptions.Builder options = Jobs.options(3).optTimeout(time).optHeartbeatTimeout(time);
        String late =
                "process 2 \\(.*\\) \\[last in: reading the data\\] did not come to the exchange"
                        + " 'sizes' within 2 s: see whether its program has gone another way or has"
                        + " returned, or give the job a longer time-out";
        Jobs.each(
                3,
                options,
                job -> {
                    if (job.getProcess() == 2) {
                        job.setStatus(() -> "reading the data");
                        Jobs.assertMatches(job.awaitFailure(Duration.ofSeconds(20)), late);
                    } else {
                        Jobs.assertFails(late, () -> job.exchange("sizes", new byte[1]));
                    }
                });
    }

    @Test(timeOut = 30_000)
    public void anExchangeAfterTheEndOfAnotherIsAnErrorAtOnce() throws Exception {
        for (int gone = 0; gone < 2; gone++) {
            int ending = gone;
            List<Job> jobs = Jobs.joinAll(2, Jobs.options(2));
            Job left = jobs.get(1 - ending);
            jobs.get(ending).close();
            Assert.assertNull(left.awaitFailure(Duration.ofMillis(300)), "a goodbye is no failure");
            Jobs.assertFails(
                    "process " + ending + " \\(.*has ended and takes no part in 'x'",
                    () -> left.exchange("x", new byte[0]));
            left.close();
        }
    }

    @Test(timeOut = 30_000)
    public void aClosedJobSaysSo() throws Exception {
        for (int processes = 1; processes < 3; processes++) {
            List<Job> jobs = Jobs.joinAll(processes, Jobs.options(processes));
            Jobs.closeAll(jobs);
            Jobs.closeAll(jobs);
            for (Job job : jobs) {
                Refusals.throwsState(() -> job.exchange("x", new byte[0]));
                Assert.assertNull(job.awaitFailure(Duration.ofSeconds(60)));
                job.fail(job.getFirstRank(), new RuntimeException("too late"));
            }
        }
    }

    @Test(timeOut = 30_000)
    public void anInterruptedProcessStillSaysGoodbye() throws Exception {
        List<Job> jobs = Jobs.joinAll(2, Jobs.options(2));
        Thread.currentThread().interrupt();
        jobs.get(1).close();
        Assert.assertTrue(Thread.interrupted());
        Assert.assertNull(jobs.get(0).awaitFailure(Duration.ofMillis(300)));
        jobs.get(0).close();
    }

    @Test(timeOut = 30_000)
    public void theSamePortServesJobAfterJob() throws Exception {
        int port = FreePort.find();
        JobOptions options = Jobs.options(2).build();
        for (int i = 0; i < 5; i++) {
            List<Callable<Job>> tasks =
                    List.of(
                            () -> Jobs.join(0, 2, port, options),
                            () -> Jobs.join(1, 2, port, options));
            Jobs.closeAll(Jobs.results(tasks));
        }
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] text) {
        return new String(text, StandardCharsets.UTF_8);
    }
}
