package io.djltp.job;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
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
        Jobs.run(
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
                    return null;
                });
    }

    @Test(dataProvider = "sizes", timeOut = 30_000)
    public void everyProcessGetsTheMessagesOfAll(int processes, int ranks) throws Exception {
        Jobs.run(
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
                    return null;
                });
    }

    @Test(timeOut = 30_000)
    public void messagesMayBeEmptyOrLarge() throws Exception {
        byte[] large = new byte[Job.MAX_EXCHANGE];
        new Random(1).nextBytes(large);
        Jobs.run(
                3,
                3,
                job -> {
                    byte[] mine = job.getProcess() == 1 ? new byte[0] : large;
                    byte[][] all = job.exchange("sizes", mine);
                    Assert.assertEquals(all[0], large);
                    Assert.assertEquals(all[1], new byte[0]);
                    Assert.assertEquals(all[2], large);
                    IllegalArgumentException e =
                            Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () -> job.exchange("x", new byte[large.length + 1]));
                    Jobs.assertMatches(
                            e, "The message of 1048577 bytes .* is larger than 1048576: send less");
                    job.check("still in step", null);
                    return null;
                });
    }

    @Test(timeOut = 30_000)
    public void aCheckNamesEveryProcessThatIsNotReady() throws Exception {
        Jobs.run(
                3,
                6,
                job -> {
                    int p = job.getProcess();
                    JobFailedException e =
                            Assert.expectThrows(
                                    JobFailedException.class,
                                    () -> job.check("start", p == 0 ? null : "no GPU " + p));
                    Jobs.assertMatches(
                            e,
                            "start failed on process 1 \\(ranks 2-3, pid \\d+ on .*\\): no GPU 1;"
                                    + " process 2 \\(ranks 4-5, pid \\d+ on .*\\): no GPU 2");
                    Assert.assertEquals(e.getProcess(), -1);
                    Assert.assertNull(job.awaitFailure(Duration.ZERO), "the job goes on");
                    job.check("again", null);
                    return null;
                });
    }

    @Test(timeOut = 30_000)
    public void differentExchangesAreAnErrorOnAll() throws Exception {
        List<String> messages =
                Jobs.run(
                        3,
                        3,
                        job -> {
                            String what = job.getProcess() == 1 ? "b" : "a";
                            return Assert.expectThrows(
                                            JobFailedException.class,
                                            () -> job.exchange(what, new byte[1]))
                                    .getMessage();
                        });
        for (String message : messages) {
            Assert.assertTrue(
                    message.matches(
                            "process 0 \\(.*\\) is in the exchange 'a', but process 1 \\(.*\\) in"
                                    + " 'b': call the same on all processes, in the same order and"
                                    + " one thread"),
                    message);
        }
    }

    @Test(timeOut = 30_000)
    public void whoDoesNotComeToAnExchangeIsNamed() throws Exception {
        // the status is told within half a second
        Duration time = Duration.ofSeconds(2);
        JobOptions options = Jobs.options(3).optTimeout(time).optHeartbeatTimeout(time).build();
        List<String> messages =
                Jobs.run(
                        3,
                        options,
                        job -> {
                            if (job.getProcess() == 2) {
                                job.setStatus(() -> "reading the data");
                                return job.awaitFailure(Duration.ofSeconds(20)).getMessage();
                            }
                            return Assert.expectThrows(
                                            JobFailedException.class,
                                            () -> job.exchange("sizes", new byte[1]))
                                    .getMessage();
                        });
        for (String message : messages) {
            Assert.assertTrue(
                    message.matches(
                            "process 2 \\(.*\\) \\[last in: reading the data\\] did not come to"
                                    + " the exchange 'sizes' within 2 s: see whether its program has"
                                    + " gone another way or has returned, or give the job a longer"
                                    + " time-out"),
                    message);
        }
    }

    @Test(timeOut = 30_000)
    public void anExchangeAfterTheEndOfAnotherIsAnErrorAtOnce() throws Exception {
        for (int gone = 0; gone < 2; gone++) {
            int ending = gone;
            List<Job> jobs = Jobs.joinAll(2, Jobs.options(2).build());
            Job left = jobs.get(1 - ending);
            jobs.get(ending).close();
            Assert.assertNull(left.awaitFailure(Duration.ofMillis(300)), "a goodbye is no failure");
            JobFailedException e =
                    Assert.expectThrows(
                            JobFailedException.class, () -> left.exchange("x", new byte[0]));
            Jobs.assertMatches(e, "process " + ending + " \\(.*has ended and takes no part in 'x'");
            left.close();
        }
    }

    @Test(timeOut = 30_000)
    public void aClosedJobSaysSo() throws Exception {
        for (int processes = 1; processes < 3; processes++) {
            List<Job> jobs = Jobs.joinAll(processes, Jobs.options(processes).build());
            Jobs.closeAll(jobs);
            Jobs.closeAll(jobs);
            for (Job job : jobs) {
                Assert.expectThrows(
                        IllegalStateException.class, () -> job.exchange("x", new byte[0]));
                Assert.assertNull(job.awaitFailure(Duration.ofSeconds(60)));
                job.fail(job.getFirstRank(), new RuntimeException("too late"));
            }
        }
    }

    @Test(timeOut = 30_000)
    public void anInterruptedProcessStillSaysGoodbye() throws Exception {
        List<Job> jobs = Jobs.joinAll(2, Jobs.options(2).build());
        Thread.currentThread().interrupt();
        jobs.get(1).close();
        Assert.assertTrue(Thread.interrupted());
        Assert.assertNull(jobs.get(0).awaitFailure(Duration.ofMillis(300)));
        jobs.get(0).close();
    }

    @Test(timeOut = 30_000)
    public void theSamePortServesJobAfterJob() throws Exception {
        int port = Jobs.freePort();
        for (int i = 0; i < 5; i++) {
            List<Callable<Job>> tasks = new ArrayList<>();
            for (int p = 0; p < 2; p++) {
                int process = p;
                tasks.add(() -> Jobs.join(process, 2, port, Jobs.options(2).build()));
            }
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
