package io.djltp.examples.chaos;

import io.djltp.examples.ForkedTp;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A job on two hosts, and what becomes of it when the cable between them is pulled. */
public class NetworkTest {

    private static final int SKIPPED = 77;

    @Test(timeOut = 300_000)
    public void twoHostsTrainAndFindThatTheCableIsPulled() throws Exception {
        ForkedTp.skipWithout("ip", "apt-get install iproute2");
        Path script = Path.of(System.getProperty("basedir", "examples"), "netns.sh");
        List<String> command = new ArrayList<>(List.of("bash", script.toString()));
        command.addAll(ForkedTp.command());
        Path output = Files.createTempFile("netns", ".txt");
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.redirectErrorStream(true).redirectOutput(output.toFile());
        Process process = builder.start();
        try {
            boolean ended = process.waitFor(270, TimeUnit.SECONDS);
            String text = Files.readString(output, StandardCharsets.UTF_8);
            Assert.assertTrue(ended, text);
            if (process.exitValue() == SKIPPED) {
                throw new SkipException(text.trim());
            }
            Assert.assertEquals(process.exitValue(), 0, text);
            Assert.assertTrue(text.contains("netns: good"), text);
        } finally {
            process.destroy(); // politely: the script takes down what it has set up
            process.waitFor(10, TimeUnit.SECONDS);
            Files.delete(output);
        }
    }
}
