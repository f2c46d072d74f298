package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;

/** Processes that do not make a job find out, all of them, and are told what to do. */
public class RefusalTest {

    private static final Duration SHORT = Duration.ofSeconds(1);

    @Test(timeOut = 30_000)
    public void ranksMustBeSharedEvenly() {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> Jobs.join(0, 2, 1, Jobs.options(5).build()));
        Assert.assertEquals(
                e.getMessage(),
                "5 ranks cannot be shared evenly by 2 processes: use a multiple of 2 ranks");
    }

    @DataProvider
    static Object[][] misfits() {
        JobOptions.Builder newer = Jobs.options(6).optVersion("1.1");
        return new Object[][] {
            {
                Jobs.environment(1, 3, 0),
                newer,
                "process 0 \\(pid \\d+ on .*\\) says version 1.0, process 1 \\(pid \\d+ on .*\\)"
                        + " says version 1.1: start the same version of the library in all"
                        + " processes"
            },
            {
                Jobs.environment(1, 2, 0),
                Jobs.options(6),
                "process 0 \\(.*\\) says 3 processes, process 1 \\(.*\\) says 2: set the same"
                        + " world size for all processes, or another MASTER_PORT if they are of"
                        + " two jobs"
            },
            {
                Jobs.environment(4, 6, 0),
                Jobs.options(6),
                "process 0 \\(.*\\) says 3 processes, process 4 \\(.*\\) says 6: set .*"
            },
            {
                Jobs.environment(1, 3, 0),
                Jobs.options(3),
                "process 0 \\(.*\\) says 6 ranks, process 1 \\(.*\\) says 3: give the same number"
                        + " of ranks to all processes, or another MASTER_PORT if .* two jobs"
            },
            {
                Jobs.environment(2, 3, 0),
                Jobs.options(6),
                "process 2 \\(.*\\) and process 2 \\(.*\\) have the same number: give every"
                        + " process a RANK of its own, or another MASTER_PORT if .* two jobs"
            },
            {
                Jobs.environment(0, 3, 0),
                null,
                "process 0 \\(.*\\) and process 0 \\(.*\\) have the same number: .*"
            },
        };
    }

    /** One misfit, and the master and another process: all three get the same error. */
    @Test(dataProvider = "misfits", timeOut = 30_000)
    public void aMisfitIsAnErrorOnAll(
            LaunchEnvironment misfit, JobOptions.Builder options, String pattern) throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int port = MasterPort.getPort(bound);
        JobOptions good = Jobs.options(6).build();
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(Jobs.environment(0, 3, port), good, bound));
        tasks.add(() -> Jobs.join(2, 3, port, good));
        if (options == null) {
            tasks.add(() -> joinAsSecondMaster(port));
        } else {
            int process = misfit.process();
            int processes = misfit.processes();
            tasks.add(
                    () -> {
                        Thread.sleep(300); // after the good one: all that have come are told
                        return Jobs.join(process, processes, port, options.build());
                    });
        }
        for (JobFailedException failure : Jobs.failures(tasks)) {
            Jobs.assertMatches(failure, pattern);
        }
    }

    /**
     * Two jobs are given the same port. The master of the second finds it taken; a process of it
     * comes to the first, before or after that one is complete. All are told of MASTER_PORT.
     */
    @Test(timeOut = 30_000)
    public void twoJobsOnOnePortAreToldOfMasterPort() throws Exception {
        int port = Jobs.freePort();
        JobOptions options = Jobs.options(3).build();
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Jobs.join(0, 3, port, options));
        tasks.add(() -> Jobs.join(1, 3, port, options));
        tasks.add(
                () -> {
                    Thread.sleep(500);
                    return Jobs.join(0, 3, port, options);
                });
        tasks.add(
                () -> {
                    Thread.sleep(1000);
                    return Jobs.join(1, 3, port, options);
                });
        List<JobFailedException> failures = Jobs.failures(tasks);
        for (JobFailedException failure : failures) {
            Jobs.assertMatches(failure, ".* MASTER_PORT .*");
        }
        Jobs.assertMatches(failures.get(2), "Process 0 cannot listen at .* set MASTER_PORT to .*");
        Jobs.assertMatches(failures.get(3), failures.get(0).getMessage().replaceAll("\\W", "."));
    }

    // a second process 0 would bind a port of its own: only one that is faked gets so far
    private static Job joinAsSecondMaster(int port) throws Exception {
        Thread.sleep(300);
        Hello hello = new Hello(1, "1.0", 0, 3, 6, "h", 7, Jobs.LOOPBACK);
        try (FakeMember fake = FakeMember.connect(port, hello)) {
            throw new JobFailedException(fake.read().content(String.class), -1, -1, null);
        }
    }

    @Test(timeOut = 30_000)
    public void theMissingAreNamedToAll() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int port = MasterPort.getPort(bound);
        JobOptions options = Jobs.options(4).optTimeout(SHORT).build();
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(Jobs.environment(0, 4, port), options, bound));
        tasks.add(() -> Jobs.join(2, 4, port, options));
        for (JobFailedException failure : Jobs.failures(tasks)) {
            Jobs.assertMatches(
                    failure,
                    "processes 1, 3 of 4 did not come to process 0 \\(.*\\) within 1 s: see whether"
                            + " each was started, reaches MASTER_ADDR:MASTER_PORT and has the same"
                            + " TP_SECRET, or give a longer time-out");
        }
    }

    @Test(timeOut = 30_000)
    public void aProcessThatEndedMayComeAgain() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int port = MasterPort.getPort(bound);
        JobOptions options = Jobs.options(3).build();
        Hello first = new Hello(1, "1.0", 1, 3, 3, "h", 7, Jobs.LOOPBACK);
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(Jobs.environment(0, 3, port), options, bound));
        tasks.add(
                () -> {
                    FakeMember.connect(port, first).close();
                    Thread.sleep(300);
                    return Jobs.join(1, 3, port, options);
                });
        tasks.add(
                () -> {
                    Thread.sleep(600);
                    return Jobs.join(2, 3, port, options);
                });
        List<Job> jobs = Jobs.results(tasks);
        Assert.assertEquals(jobs.get(2).getMember(1).pid(), ProcessHandle.current().pid());
        Jobs.closeAll(jobs);
    }

    /** A member whose connection was lost before it knew that it was in is no duplicate. */
    @Test(timeOut = 30_000)
    public void theSameProcessMayConnectAgain() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int port = MasterPort.getPort(bound);
        Hello hello = new Hello(1, "1.0", 1, 3, 3, "h", 7, Jobs.LOOPBACK);
        JobOptions options = Jobs.options(3).build();
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(Jobs.environment(0, 3, port), options, bound));
        tasks.add(
                () -> {
                    try (FakeMember lost = FakeMember.connect(port, hello);
                            FakeMember good = FakeMember.connect(port, hello)) {
                        Job job = Jobs.join(2, 3, port, options);
                        Assert.assertTrue(lost.isOpen() && good.isOpen());
                        job.close();
                        return null;
                    }
                });
        Jobs.results(tasks).get(0).close();
    }

    @Test(timeOut = 30_000)
    public void aLatecomerDoesNoHarm() throws Exception {
        List<Job> jobs = new ArrayList<>();
        int port = Jobs.freePort();
        List<Callable<Job>> tasks = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            int process = i;
            tasks.add(() -> Jobs.join(process, 2, port, Jobs.options(2).build()));
        }
        jobs.addAll(Jobs.results(tasks));
        JobFailedException e =
                Assert.expectThrows(
                        JobFailedException.class,
                        () -> Jobs.join(1, 2, port, Jobs.options(2).build()));
        Jobs.assertMatches(
                e,
                "process 1 \\(.*\\) came to process 0 \\(.*\\), whose job is already complete: .*");
        for (int i = 0; i < 10; i++) {
            Jobs.inParallel(jobs, job -> job.exchange("after", new byte[3]));
        }
        Assert.assertNull(jobs.get(0).awaitFailure(Duration.ofMillis(100)));
        Jobs.closeAll(jobs);
    }
}
