package io.djltp.job;

import io.djltp.job.Jobs.Meeting;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;

/** Processes that do not make a job find out, all of them, and are told what to do. */
public class RefusalTest {

    @Test(timeOut = 30_000)
    public void ranksMustBeSharedEvenly() {
        Jobs.assertThrows(
                IllegalArgumentException.class,
                "5 ranks cannot be shared evenly by 2 processes: use a multiple of 2 ranks",
                () -> Jobs.join(0, 2, 1, Jobs.options(5).build()));
    }

    @DataProvider
    static Object[][] misfits() {
        return new Object[][] {
            {
                "1 of 3, 6 ranks, version 1.1",
                "process 0 \\(pid \\d+ on .*\\) says version 1.0, process 1 \\(pid \\d+ on .*\\)"
                        + " says version 1.1: start the same version of the library in all"
                        + " processes"
            },
            {
                "1 of 2, 6 ranks, version 1.0",
                "process 0 \\(.*\\) says 3 processes, process 1 \\(.*\\) says 2: set the same"
                        + " world size for all processes, or another MASTER_PORT if they are of"
                        + " two jobs"
            },
            {
                "4 of 6, 6 ranks, version 1.0",
                "process 0 \\(.*\\) says 3 processes, process 4 \\(.*\\) says 6: set .*"
            },
            {
                "1 of 3, 3 ranks, version 1.0",
                "process 0 \\(.*\\) says 6 ranks, process 1 \\(.*\\) says 3: give the same number"
                        + " of ranks to all processes, or another MASTER_PORT if .* two jobs"
            },
            {
                "2 of 3, 6 ranks, version 1.0",
                "process 2 \\(.*\\) and process 2 \\(.*\\) have the same number: give every"
                        + " process a RANK of its own, or another MASTER_PORT if .* two jobs"
            },
            {
                "0 of 3, 6 ranks, version 1.0",
                "process 0 \\(.*\\) and process 0 \\(.*\\) have the same number: .*"
            },
        };
    }

    /** One misfit, and the master and another process: all three get the same error. */
    @Test(dataProvider = "misfits", timeOut = 30_000)
    public void aMisfitIsAnErrorOnAll(String misfit, String pattern) throws Exception {
        String[] words = misfit.split(",? ");
        int process = Integer.parseInt(words[0]);
        int processes = Integer.parseInt(words[2]);
        JobOptions.Builder options = Jobs.options(Integer.parseInt(words[3])).optVersion(words[6]);
        Meeting meeting = new Meeting(3, Jobs.options(6));
        CountDownLatch arrived = new CountDownLatch(1);
        meeting.with(
                        () -> {
                            try (FakeMember good = join(2, meeting.port)) {
                                good.next(); // a heartbeat: it is let in
                                arrived.countDown();
                                return told(good);
                            } finally {
                                arrived.countDown(); // nobody waits for one that failed
                            }
                        })
                .with(
                        () -> {
                            arrived.await(); // all that have come are told
                            return process == 0
                                    ? told(join(0, meeting.port))
                                    : Jobs.join(process, processes, meeting.port, options.build());
                        })
                .fails(pattern);
    }

    // a second process 0 would bind a port of its own: only one that is faked gets so far
    private static FakeMember join(int process, int port) throws Exception {
        return FakeMember.connect(
                port, new Hello(1, "1.0", process, 3, 6, "h", 7, Jobs.LOOPBACK, null));
    }

    private static Job told(FakeMember member) throws Exception {
        try (member) {
            throw new JobFailedException(member.read().content(String.class), -1, -1, null);
        }
    }

    /**
     * Two jobs are given the same port. The master of the second finds it taken; a process of it
     * comes to the first, before or after that one is complete. All are told of MASTER_PORT.
     */
    @Test(timeOut = 30_000)
    public void twoJobsOnOnePortAreToldOfMasterPort() throws Exception {
        Meeting meeting = new Meeting(3, Jobs.options(3)).with(1, Jobs.options(3));
        List<JobFailedException> failures =
                meeting.after(500, 0, Jobs.options(3)).after(1000, 1, Jobs.options(3)).failures();
        for (JobFailedException failure : failures) {
            Jobs.assertMatches(failure, ".* MASTER_PORT .*");
        }
        Jobs.assertMatches(failures.get(2), "Process 0 cannot listen at .* set MASTER_PORT to .*");
        Jobs.assertMatches(failures.get(3), failures.get(0).getMessage().replaceAll("\\W", "."));
    }

    @Test(timeOut = 30_000)
    public void theMissingAreNamedToAll() throws Exception {
        JobOptions.Builder options = Jobs.options(4).optTimeout(Duration.ofSeconds(1));
        new Meeting(4, options)
                .with(2, options)
                .fails(
                        "processes 1, 3 of 4 did not come to process 0 \\(.*\\) within 1 s: see"
                                + " whether each was started, reaches MASTER_ADDR:MASTER_PORT and"
                                + " has the same TP_SECRET, or give a longer time-out");
    }

    @Test(timeOut = 30_000)
    public void aProcessThatEndedMayComeAgain() throws Exception {
        Hello first = new Hello(1, "1.0", 1, 3, 3, "h", 7, Jobs.LOOPBACK, null);
        Meeting meeting = new Meeting(3, Jobs.options(3));
        meeting.with(
                () -> {
                    FakeMember.connect(meeting.port, first).close();
                    Thread.sleep(300);
                    return Jobs.join(1, 3, meeting.port, Jobs.options(3).build());
                });
        List<Job> jobs = meeting.after(600, 2, Jobs.options(3)).jobs();
        Assert.assertEquals(jobs.get(2).getMember(1).pid(), ProcessHandle.current().pid());
        Jobs.closeAll(jobs);
    }

    /** A member whose connection was lost before it knew that it was in is no duplicate. */
    @Test(timeOut = 30_000)
    public void theSameProcessMayConnectAgain() throws Exception {
        Hello hello = new Hello(1, "1.0", 1, 3, 3, "h", 7, Jobs.LOOPBACK, null);
        Meeting meeting = new Meeting(3, Jobs.options(3));
        meeting.with(
                        () -> {
                            try (FakeMember lost = FakeMember.connect(meeting.port, hello);
                                    FakeMember good = FakeMember.connect(meeting.port, hello)) {
                                Job job = Jobs.join(2, 3, meeting.port, Jobs.options(3).build());
                                Assert.assertTrue(lost.isOpen() && good.isOpen());
                                job.close();
                                return job;
                            }
                        })
                .jobs()
                .get(0)
                .close();
    }

    @Test(timeOut = 30_000)
    public void aLatecomerDoesNoHarm() throws Exception {
        int port = FreePort.find();
        JobOptions options = Jobs.options(2).build();
        List<Callable<Job>> tasks =
                List.of(() -> Jobs.join(0, 2, port, options), () -> Jobs.join(1, 2, port, options));
        List<Job> jobs = new ArrayList<>(Jobs.<Job>results(tasks));
        Jobs.assertFails(
                "process 1 \\(.*\\) came to process 0 \\(.*\\), whose job is already complete: .*",
                () -> Jobs.join(1, 2, port, options));
        for (int i = 0; i < 10; i++) {
            Jobs.inParallel(jobs, job -> job.exchange("after", new byte[3]));
        }
        Assert.assertNull(jobs.get(0).awaitFailure(Duration.ofMillis(100)));
        Jobs.closeAll(jobs);
    }
}
