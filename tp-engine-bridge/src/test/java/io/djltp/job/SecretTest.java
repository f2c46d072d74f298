package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.internal.sockets.RankSockets;
import io.djltp.job.Jobs.Meeting;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

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
import java.util.regex.Pattern;

/** Whoever does not know the secret of a job is no part of it, and is told so. */
public class SecretTest {

    private static final Duration SHORT = Duration.ofSeconds(1);
    private static final byte[] SECRET = secret("one");

    @Test(timeOut = 30_000)
    public void aWrongSecretIsNoMember() throws Exception {
        Duration handshakes = SHORT.multipliedBy(3); // on a busy machine
        JobOptions.Builder options = Jobs.options(2).optTimeout(handshakes);
        Meeting meeting = new Meeting(2, options.optSecret(SECRET));
        for (byte[] wrong : new byte[][] {secret("two"), null}) {
            // at last nobody listens any more, which is not why they are no members
            meeting.with(1, Jobs.options(2).optTimeout(handshakes.plus(SHORT)).optSecret(wrong));
        }
        List<JobFailedException> failures = new ArrayList<>();
        String log = Refusals.logged(() -> failures.addAll(meeting.failures()));
        for (String why : List.of("is TP_SECRET the same", "without TP_SECRET all processes")) {
            String warning =
                    "Process 1 was refused by process 0 at 127.0.0.1:%d (it does not know the"
                            + " secret), and tries again for 4 s, because another job may have the port: %s";
            String line = warning.formatted(meeting.port, why);
            Assert.assertEquals(log.split(Pattern.quote(line), -1).length, 2, log); // once
        }
        Jobs.assertMatches(
                failures.get(0),
                "process 1 of 2 did not come .* \\(\\d+ attempts had another secret\\)");
        String refused = "Process 1 was refused by process 0 at 127.0.0.1:\\d+ for 4 s \\(.*\\): ";
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
        try (FalseMaster master = new FalseMaster(bound, playsBack)) {
            Duration handshakes = SHORT.multipliedBy(4); // the first ones, on a busy machine
            JobOptions options = Jobs.options(2).optTimeout(handshakes).optSecret(SECRET).build();
            Jobs.assertFails(
                    "Process 1 was refused .* \\(it does not know the secret\\): .*",
                    () -> Jobs.join(1, 2, MasterPort.getPort(bound), options));
            Assert.assertTrue(master.served() > 0);
        }
    }

    @Test(timeOut = 30_000)
    public void anAddressThatOthersReachNeedsASecret() throws Exception {
        JobOptions options = Jobs.options(2).build();
        for (int process = 0; process < 2; process++) {
            LaunchEnvironment environment =
                    new LaunchEnvironment("test", process, 2, 0, "192.0.2.77", 29_500);
            Jobs.assertThrows(
                    IllegalArgumentException.class,
                    "A job at 192.0.2.77:29500 can be reached from other machines and needs a"
                            + " secret: set TP_SECRET to the same long random text on all"
                            + " processes",
                    () -> Job.join(environment, options));
        }
        ServerSocketChannel all = MasterPort.bindEphemeral("0.0.0.0");
        Jobs.assertThrows(
                IllegalArgumentException.class,
                "A job at .* needs a secret: .*",
                () -> Job.join(Jobs.environment(0, 2, MasterPort.getPort(all)), options, all));
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
            String address, int length, String refusal) throws Exception {
        JobOptions.Builder options =
                Jobs.options(2)
                        .optTimeout(Duration.ofMillis(10))
                        .optSecret(secret("x".repeat(length)));
        ServerSocketChannel bound = MasterPort.bindEphemeral(address);
        Object e = new Meeting(2, options, bound).outcomes().get(0);
        if (refusal == null) {
            Assert.assertTrue(e instanceof JobFailedException, "nobody else comes: " + e);
        } else {
            Assert.assertTrue(e instanceof IllegalArgumentException, "" + e);
            Jobs.assertMatches(
                    (Throwable) e, refusal + ".* Give 16 or more .*openssl rand -hex 32 prints");
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
            Map<String, String> environment = Map.of("TP_SECRET_FILE", file.toString());
            String log = Refusals.logged(() -> Jobs.options(2).optEnvironment(environment).build());
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
        List<Job> jobs =
                new Meeting(
                                2,
                                Jobs.options(4)
                                        .optEnvironment(Map.of("TP_SECRET_FILE", file.toString())),
                                MasterPort.bindEphemeral("0.0.0.0"))
                        .with(
                                1,
                                Jobs.options(4)
                                        .optEnvironment(Map.of("TP_SECRET", "a long random text")))
                        .jobs();
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
