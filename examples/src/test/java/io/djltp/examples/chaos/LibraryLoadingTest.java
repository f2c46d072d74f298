package io.djltp.examples.chaos;

import static java.nio.charset.StandardCharsets.UTF_8;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;

/** Who waits for the libraries learns that the job has failed. */
public class LibraryLoadingTest {

    /** As a process that was frozen while it unpacked them: its lock stays. */
    @Test(timeOut = 120_000)
    public void aLockThatIsNeverFreedHoldsUpNoneWhenTheJobHasFailed() throws Exception {
        Path cache = Files.createTempDirectory("cache");
        Path file = cache.resolve(".lock"); // JavaCPP's
        try (FileChannel channel =
                        FileChannel.open(
                                file, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                FileLock lock = channel.lock()) {
            Process process = start(cache);
            String text = new String(process.getInputStream().readAllBytes(), UTF_8);
            Assert.assertEquals(process.waitFor(), 0, text);
            Assert.assertTrue(text.contains(HeldUpJob.END + "process 0 (rank 0"), text);
            Assert.assertTrue(text.contains("on purpose"), text);
            Assert.assertTrue(lock.isValid());
        } finally {
            Files.delete(file);
            Files.delete(cache);
        }
    }

    private static Process start(Path cache) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-Dai.djl.offline=true", "-DdisableProgressBar=true"));
        command.add("-Dorg.bytedeco.javacpp.cachedir=" + cache);
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.add(HeldUpJob.class.getName());
        return new ProcessBuilder(command).redirectErrorStream(true).start();
    }
}
