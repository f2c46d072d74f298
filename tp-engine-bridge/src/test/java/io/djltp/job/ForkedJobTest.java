package io.djltp.job;

import io.djltp.collective.ForkedJvm;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Processes that are killed and processes that stand still, in JVMs of their own. */
public class ForkedJobTest {

    private static final Duration LONG = Duration.ofSeconds(30);
    private static final int HEARTBEAT_MILLIS = 3000;

    @Test(timeOut = 60_000)
    public void aKilledProcessIsFoundAtOnce() throws Exception {
        int port = FreePort.find();
        CompletableFuture<String> killed = fork(1, 3, port);
        CompletableFuture<String> other = fork(2, 3, port);
        try (Job job = join(0, 3, port)) {
            signal("KILL", job.getMember(1).pid());
            JobFailedException e = job.awaitFailure(LONG); // before it is silent for long
            Jobs.assertMatches(e, "process 1 \\(ranks 2-3, pid \\d+ on .*\\) ended without a word");
            Assert.assertEquals(e.getProcess(), 1);
            Assert.assertEquals(other.get(20, TimeUnit.SECONDS), e.getMessage());
        }
        killed.get(20, TimeUnit.SECONDS);
    }

    @Test(timeOut = 60_000)
    public void aKilledMasterIsFoundByAll() throws Exception {
        int port = FreePort.find();
        CompletableFuture<String> master = fork(0, 3, port);
        CompletableFuture<String> other = fork(2, 3, port);
        try (Job job = join(1, 3, port)) {
            signal("KILL", job.getMember(0).pid());
            JobFailedException e = job.awaitFailure(LONG);
            Jobs.assertMatches(
                    e,
                    "process 0 \\(ranks 0-1, pid \\d+ on .*\\) at 127.0.0.1:\\d+ ended without a"
                            + " word");
            Assert.assertEquals(other.get(20, TimeUnit.SECONDS), e.getMessage());
        }
        master.get(20, TimeUnit.SECONDS);
    }

    /** The process that stood still finds that it was given up, even if all others have gone. */
    @Test(timeOut = 60_000)
    public void aFrozenProcessIsGivenUpAndFindsOut() throws Exception {
        int port = FreePort.find();
        CompletableFuture<String> frozen = fork(1, 2, port);
        long pid;
        String message;
        try (Job job = join(0, 2, port)) {
            pid = job.getMember(1).pid();
            awaitStatus(job, 1);
            signal("STOP", pid);
            JobFailedException e = job.awaitFailure(LONG);
            Jobs.assertMatches(
                    e,
                    "process 1 \\(ranks 2-3, pid \\d+ on .*\\) has not been heard for 3 s; when"
                            + " last heard it was in: step 7");
            message = e.getMessage();
        }
        // the master is closed: the frozen one has only what was sent to it
        signal("CONT", pid);
        Assert.assertEquals(frozen.get(20, TimeUnit.SECONDS), message);
    }

    @Test(timeOut = 60_000)
    public void aFrozenMasterIsGivenUpAndFindsOut() throws Exception {
        int port = FreePort.find();
        CompletableFuture<String> frozen = fork(0, 2, port);
        try (Job job = join(1, 2, port)) {
            long pid = job.getMember(0).pid();
            awaitStatus(job, 0);
            signal("STOP", pid);
            JobFailedException e = job.awaitFailure(LONG);
            Jobs.assertMatches(
                    e,
                    "process 0 \\(ranks 0-1, pid \\d+ on .*\\) at 127.0.0.1:\\d+ has not been heard"
                            + " for 3 s; when last heard it was in: step 7");
            signal("CONT", pid);
            Assert.assertEquals(frozen.get(20, TimeUnit.SECONDS), e.getMessage());
        }
    }

    /** Waits until the job has heard what a process does. */
    private static void awaitStatus(Job job, int process) throws InterruptedException {
        while (job.lastStatus(process).isEmpty()) {
            Assert.assertNull(job.awaitFailure(Duration.ofMillis(10)));
        }
    }

    private static Job join(int process, int processes, int port) {
        JobOptions options =
                Jobs.options(2 * processes)
                        .optHeartbeatTimeout(Duration.ofMillis(HEARTBEAT_MILLIS))
                        .optTimeout(LONG) // until the others have started
                        .build();
        Job job = Jobs.join(process, processes, port, options);
        job.exchange("up", new byte[0]);
        return job;
    }

    /** Starts a process, and returns what it prints. */
    private static CompletableFuture<String> fork(int process, int processes, int port) {
        return new ForkedJvm()
                .option("-Xmx64m")
                .option("-Xshare:auto")
                .start(
                        JobProcess.class,
                        "" + process,
                        "" + processes,
                        "" + port,
                        "" + HEARTBEAT_MILLIS,
                        "" + LONG.toSeconds())
                .thenApply(result -> result.output().trim());
    }

    private static void signal(String name, long pid) throws Exception {
        Process kill = new ProcessBuilder("kill", "-" + name, "" + pid).start();
        Assert.assertEquals(kill.waitFor(), 0);
    }
}
