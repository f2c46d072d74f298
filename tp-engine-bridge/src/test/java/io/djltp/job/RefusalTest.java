package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.sockets.RankSockets;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.InputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Processes that do not make a job find out, all of them, and are told what to do. */
public class RefusalTest {

    private static final Duration SHORT = Duration.ofSeconds(1);
    private static final byte[] SECRET = secret("one");

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
    public void anUnreachableMasterIsNamed() throws Exception {
        int port = Jobs.freePort();
        JobOptions options = Jobs.options(2).optTimeout(SHORT).build();
        JobFailedException e =
                Assert.expectThrows(JobFailedException.class, () -> Jobs.join(1, 2, port, options));
        Jobs.assertMatches(
                e,
                ("Process 1 cannot reach process 0 at 127.0.0.1:%d within 1 s \\(Connection"
                                + " refused\\): see whether process 0 was started there, and"
                                + " MASTER_ADDR and MASTER_PORT are the same on all processes")
                        .formatted(port));
    }

    @Test(timeOut = 30_000)
    public void anotherServiceAtThePortIsNamed() throws Exception {
        try (ServerSocket other = new ServerSocket(0)) {
            Thread http = new Thread(() -> answerHttp(other));
            http.start();
            JobOptions options = Jobs.options(2).optTimeout(SHORT).build();
            JobFailedException e =
                    Assert.expectThrows(
                            JobFailedException.class,
                            () -> Jobs.join(1, 2, other.getLocalPort(), options));
            Jobs.assertMatches(e, ".*what listens there is no process of a job, or has another.*");
        }
    }

    private static void answerHttp(ServerSocket server) {
        try {
            while (true) {
                try (Socket socket = server.accept()) {
                    socket.getOutputStream().write("HTTP/1.1 400 Bad Request\r\n".getBytes());
                    InputStream in = socket.getInputStream();
                    in.read();
                }
            }
        } catch (java.io.IOException e) {
            return; // the test is over
        }
    }

    @Test(timeOut = 30_000)
    public void aPortInUseIsAnErrorAtOnce() throws Exception {
        try (ServerSocketChannel other = Jobs.bind()) {
            int port = MasterPort.getPort(other);
            long start = System.nanoTime();
            JobFailedException e =
                    Assert.expectThrows(
                            JobFailedException.class,
                            () -> Jobs.join(0, 2, port, Jobs.options(2).build()));
            Assert.assertTrue(System.nanoTime() - start < 5e9);
            Jobs.assertMatches(
                    e,
                    ("Process 0 cannot listen at 127.0.0.1:%d \\(Address already in use\\): end"
                                    + " what uses port %d, or set MASTER_PORT to a free port on all"
                                    + " processes")
                            .formatted(port, port));
        }
    }

    @Test(timeOut = 30_000)
    public void aWrongSecretIsNoMember() throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        int port = MasterPort.getPort(bound);
        JobOptions.Builder options = Jobs.options(2).optTimeout(SHORT);
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(
                () ->
                        Job.join(
                                Jobs.environment(0, 2, port),
                                options.optSecret(SECRET).build(),
                                bound));
        for (byte[] wrong : new byte[][] {secret("two"), null}) {
            JobOptions.Builder other = Jobs.options(2).optTimeout(SHORT.dividedBy(2));
            tasks.add(() -> Jobs.join(1, 2, port, other.optSecret(wrong).build()));
        }
        List<JobFailedException> failures = Jobs.failures(tasks);
        Jobs.assertMatches(
                failures.get(0),
                "process 1 of 2 did not come .* \\(\\d+ attempts had another secret\\)");
        String refused =
                "Process 1 was refused by process 0 at 127.0.0.1:\\d+ for 500 ms \\(.*\\): ";
        Jobs.assertMatches(failures.get(1), refused + "is TP_SECRET the same on all processes\\?");
        Jobs.assertMatches(
                failures.get(2),
                refused
                        + "without TP_SECRET all processes of a job on loopback must be of one"
                        + " user; otherwise set TP_SECRET to the same long random text on all"
                        + " processes");
    }

    @DataProvider
    static Object[][] falseMasters() {
        return new Object[][] {{false}, {true}};
    }

    /** A master that does not know the secret gets nothing from a member. */
    @Test(dataProvider = "falseMasters", timeOut = 30_000)
    public void aFalseMasterIsNoMaster(boolean playsBack) throws Exception {
        ServerSocketChannel bound = Jobs.bind();
        try (ServerSocketChannel server = bound;
                FalseMaster master = new FalseMaster(server, playsBack)) {
            JobOptions options = Jobs.options(2).optTimeout(SHORT).optSecret(SECRET).build();
            JobFailedException e =
                    Assert.expectThrows(
                            JobFailedException.class,
                            () -> Jobs.join(1, 2, MasterPort.getPort(server), options));
            Jobs.assertMatches(e, "Process 1 was refused .* \\(it does not know the secret\\): .*");
            Assert.assertTrue(master.served() > 0);
        }
    }

    @Test(timeOut = 30_000)
    public void anAddressThatOthersReachNeedsASecret() throws Exception {
        for (int process = 0; process < 2; process++) {
            LaunchEnvironment environment =
                    new LaunchEnvironment("test", process, 2, 0, "192.0.2.77", 29_500);
            IllegalArgumentException e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> Job.join(environment, Jobs.options(2).build()));
            Jobs.assertMatches(
                    e,
                    "A job at 192.0.2.77:29500 can be reached from other machines and needs a"
                            + " secret: set TP_SECRET to the same long random text on all"
                            + " processes");
        }
        ServerSocketChannel all = MasterPort.bindEphemeral("0.0.0.0");
        int port = MasterPort.getPort(all);
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> Job.join(Jobs.environment(0, 2, port), Jobs.options(2).build(), all));
        Jobs.assertMatches(e, "A job at .* needs a secret: .*");
    }

    /** The cause comes first: a name that is not known, and then what else is missing. */
    @Test(timeOut = 60_000)
    public void aNameThatDoesNotResolveIsNamed() throws Exception {
        for (int process = 0; process < 2; process++) {
            LaunchEnvironment slurm = slurm(process);
            IllegalArgumentException e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> Job.join(slurm, Jobs.options(2).build()));
            Jobs.assertMatches(
                    e,
                    "Process 0 is to be at n1.invalid:20007, and the name 'n1.invalid' does not"
                            + " resolve on this machine: set MASTER_ADDR to an address of the"
                            + " machine of process 0 \\(the NodeAddr of scontrol show node"
                            + " n1.invalid\\), or add the name to /etc/hosts. A job that other"
                            + " machines can reach needs a secret, too: set TP_SECRET to .*");
        }
        JobOptions options =
                Jobs.options(2).optSecret(SECRET).optTimeout(Duration.ofMinutes(5)).build();
        JobFailedException e =
                Assert.expectThrows(JobFailedException.class, () -> Job.join(slurm(1), options));
        Jobs.assertMatches(
                e,
                "Process 1 cannot reach process 0 at n1.invalid:20007.* within 11 s \\(unknown host"
                        + " n1.invalid\\): the name 'n1.invalid' does not resolve on this machine:"
                        + " set MASTER_ADDR to .*");
    }

    private static LaunchEnvironment slurm(int process) {
        Map<String, String> variables =
                Map.of(
                        "SLURM_PROCID",
                        "" + process,
                        "SLURM_NTASKS",
                        "2",
                        "SLURM_JOB_ID",
                        "7",
                        "SLURM_STEP_ID",
                        "0",
                        "SLURM_STEP_NUM_NODES",
                        "2",
                        "SLURM_STEP_NODELIST",
                        "n1.invalid,n2.invalid");
        return LaunchEnvironment.detect(variables).orElseThrow();
    }

    /** With a secret, it may be any address: here the wildcard, and the secret is in a file. */
    @Test(timeOut = 30_000)
    public void aSecretOpensAllAddresses() throws Exception {
        Path file = Files.createTempFile("secret", ".txt");
        Files.writeString(file, "a long random text\n");
        ServerSocketChannel all = MasterPort.bindEphemeral("0.0.0.0");
        int port = MasterPort.getPort(all);
        JobOptions ofFile =
                Jobs.options(4).optEnvironment(Map.of("TP_SECRET_FILE", file.toString())).build();
        JobOptions ofText =
                Jobs.options(4).optEnvironment(Map.of("TP_SECRET", "a long random text")).build();
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(Jobs.environment(0, 2, port), ofFile, all));
        tasks.add(() -> Jobs.join(1, 2, port, ofText));
        List<Job> jobs = Jobs.results(tasks);
        Jobs.inParallel(
                jobs,
                job -> {
                    RankSockets.connect(job, "all");
                    return null;
                });
        Jobs.closeAll(jobs);
        Files.delete(file);
    }

    /** The name of a service is an address, but none of the machine that process 0 runs on. */
    @Test(timeOut = 30_000)
    public void anAddressOfNoMachineMeansAllAddresses() throws Exception {
        int port = Jobs.freePort();
        JobOptions options = Jobs.options(2).optSecret(SECRET).build();
        LaunchEnvironment service = new LaunchEnvironment("test", 0, 2, 0, "198.51.100.77", port);
        List<Callable<Job>> tasks = new ArrayList<>();
        tasks.add(() -> Job.join(service, options));
        tasks.add(() -> Jobs.join(1, 2, port, options));
        Jobs.closeAll(Jobs.results(tasks));
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

    private static byte[] secret(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
