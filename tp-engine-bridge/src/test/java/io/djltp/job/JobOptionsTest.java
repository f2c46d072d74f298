package io.djltp.job;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;

/** The options of a job: what they are without a word, and what they may not be. */
public class JobOptionsTest {

    @Test(timeOut = 10_000)
    public void theDefaultsAreThoseOfTheDocumentation() {
        JobOptions options = JobOptions.builder().setRanks(3).optEnvironment(Map.of()).build();
        Assert.assertEquals(options.ranks, 3);
        Assert.assertEquals(options.timeout, Duration.ofMinutes(5));
        Assert.assertEquals(options.heartbeatTimeout, Duration.ofSeconds(60));
        Assert.assertNull(options.secret);
        Assert.assertFalse(options.version.isBlank());
    }

    @Test(timeOut = 10_000)
    public void theSecretIsThatOfTheCallerThenOfTheTextThenOfTheFile() throws Exception {
        Path file = Files.createTempFile("secret", ".txt");
        Files.writeString(file, "\ufeffof the file\r\n");
        Map<String, String> ofFile = Map.of("TP_SECRET_FILE", file.toString());
        Map<String, String> ofBoth =
                Map.of("TP_SECRET_FILE", file.toString(), "TP_SECRET", "of the text");
        Assert.assertEquals(secret(Jobs.options(1).optEnvironment(ofFile)), "of the file");
        Assert.assertEquals(secret(Jobs.options(1).optEnvironment(ofBoth)), "of the text");
        byte[] own = "own".getBytes(StandardCharsets.UTF_8);
        Assert.assertEquals(secret(Jobs.options(1).optEnvironment(ofBoth).optSecret(own)), "own");
        Files.delete(file);
    }

    @Test(timeOut = 10_000)
    public void whatIsWrongIsSaid() throws Exception {
        fails(JobOptions.builder()::build, "A job needs 1 rank or more, not 0: call setRanks");
        fails(() -> Jobs.options(1).optSecret(new byte[0]), "The secret has 0 bytes: give .*");
        fails(
                () -> Jobs.options(1).optTimeout(Duration.ZERO),
                "The time-out is 0 ms: give 1 ms or more, and a year at most");
        fails(
                () -> Jobs.options(1).optHeartbeatTimeout(Duration.ofMillis(50)),
                "The heartbeat time-out is 50 ms: give 100 ms or more, and a year at most");
        fails(() -> build("TP_SECRET", " "), "TP_SECRET is empty: put the same long random .*");
        fails(
                () -> build("TP_SECRET_FILE", "/does/not/exist"),
                "Cannot read the file '/does/not/exist' \\(.*\\): set TP_SECRET_FILE to a text file"
                        + " that holds the secret");
        Path file = Files.createTempFile("secret", ".txt");
        fails(
                () -> build("TP_SECRET_FILE", file.toString()),
                "The file .* of TP_SECRET_FILE is empty: put the same long random .*");
        Files.delete(file);
    }

    private static void build(String name, String value) {
        Jobs.options(1).optEnvironment(Map.of(name, value)).build();
    }

    private static String secret(JobOptions.Builder options) {
        return new String(options.build().secret, StandardCharsets.UTF_8);
    }

    private static void fails(Assert.ThrowingRunnable task, String pattern) {
        Jobs.assertThrows(IllegalArgumentException.class, pattern, task);
    }
}
