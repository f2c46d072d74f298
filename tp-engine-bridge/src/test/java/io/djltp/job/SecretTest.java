package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.internal.sockets.RankSockets;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Whoever does not know the secret of a job is no part of it, and is told so. */
public class SecretTest {

    private static final Duration SHORT = Duration.ofSeconds(1);
    private static final byte[] SECRET = secret("one");

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

    @DataProvider
    static Object[][] lengths() {
        return new Object[][] {
            {"0.0.0.0", 1, "The secret has 1 byte, and other machines reach"},
            {"0.0.0.0", 15, "The secret has 15 bytes, and other machines reach"},
            {"0.0.0.0", 16, null},
            {"127.0.0.1", 1, null}
        };
    }

    @Test(dataProvider = "lengths", timeOut = 30_000)
    public void aShortSecretIsRefusedWhereOthersReachTheJob(
            String address, int length, String refusal) {
        ServerSocketChannel bound = MasterPort.bindEphemeral(address);
        JobOptions options =
                Jobs.options(2)
                        .optTimeout(Duration.ofMillis(10))
                        .optSecret(secret("x".repeat(length)))
                        .build();
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () ->
                                Job.join(
                                        Jobs.environment(0, 2, MasterPort.getPort(bound)),
                                        options,
                                        bound));
        if (refusal == null) {
            Assert.assertTrue(e instanceof JobFailedException, "nobody else comes: " + e);
        } else {
            Assert.assertTrue(e instanceof IllegalArgumentException, "" + e);
            Jobs.assertMatches(e, refusal + ".* Give 16 or more .*openssl rand -hex 32 prints");
        }
    }

    /** Nobody else is told of it where its file is for its user alone. */
    @Test(timeOut = 30_000)
    public void aFileThatOthersReadIsWarnedOf() throws Exception {
        Path file = Files.createTempFile("secret", ".txt");
        Files.writeString(file, "a long random text\n");
        if (Files.getFileAttributeView(file, PosixFileAttributeView.class) == null) {
            throw new SkipException("No permissions of POSIX");
        }
        for (String others : List.of("------", "r-----", "---r--")) {
            Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-" + others));
            PrintStream before = System.err;
            ByteArrayOutputStream logged = new ByteArrayOutputStream();
            System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
            try {
                Jobs.options(2).optEnvironment(Map.of("TP_SECRET_FILE", file.toString())).build();
            } finally {
                System.setErr(before);
            }
            String log = logged.toString(StandardCharsets.UTF_8);
            String warning = file + " of TP_SECRET_FILE (rw-" + others + "): chmod 600";
            Assert.assertEquals(log.contains(warning), others.contains("r"), log);
        }
        Files.delete(file);
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

    private static byte[] secret(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
