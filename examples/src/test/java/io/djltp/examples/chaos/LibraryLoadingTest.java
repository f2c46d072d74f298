package io.djltp.examples.chaos;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

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
            String text =
                    new ForkedJvm()
                            .option("-Xmx128m")
                            .option("-Dorg.bytedeco.javacpp.cachedir=" + cache)
                            .succeed(HeldUpJob.class);
            Assert.assertTrue(text.contains(HeldUpJob.END + "process 0 (rank 0"), text);
            Assert.assertTrue(text.contains("on purpose"), text);
            Assert.assertTrue(lock.isValid());
        } finally {
            Files.delete(file);
            Files.delete(cache);
        }
    }
}
