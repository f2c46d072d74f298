package io.djltp.checkpoint;

import ai.djl.util.Utils;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Processes that are killed while they write, that write one checkpoint together, or want the same
 * folder. More kills: {@code -Ddjltp.checkpoint.kills=200}.
 */
public class StoreInProcessesTest {

    private static final int KILLS = Integer.getInteger("djltp.checkpoint.kills", 8);
    private static final int KEEP = 2;
    private static final int SECONDS = 60;

    private Path root;
    private Path output;

    @BeforeMethod
    public void makeFolder() throws IOException {
        root = Files.createTempDirectory("store");
        output = Files.createTempFile("store", ".txt");
    }

    @AfterMethod
    public void removeFolder() throws IOException {
        Utils.deleteQuietly(root);
        Files.delete(output);
    }

    /** SIGKILL at random moments, more than a quarter of them during a write. */
    @Test
    public void testTheNewestIsWholeWheneverTheWriterIsKilled() throws Exception {
        Random random = new Random(1);
        long before = 0;
        int halfWritten = 0;
        for (int kill = 0; kill < KILLS || halfWritten <= KILLS / 4; kill++) {
            Assert.assertTrue(kill < 5 * KILLS, halfWritten + " kills during a write");
            Process process = StoreProcess.start(output, root, "forever", "" + KEEP);
            awaitStep(process, before + 1);
            Thread.sleep(random.nextInt(100));
            process.destroyForcibly();
            Assert.assertTrue(process.waitFor(SECONDS, TimeUnit.SECONDS), "it has not ended");
            halfWritten += leftOver() > 0 ? 1 : 0;
            try (Checkpoint newest = newest()) {
                Assert.assertTrue(newest.getStep() > before, "kill " + kill);
                Assert.assertEquals(newest.verify(), List.of(), "kill " + kill);
                Assert.assertTrue(StoreProcess.isRight(newest), "kill " + kill);
                before = newest.getStep();
            }
        }
        try (CheckpointFolder next = CheckpointFolder.open(root)) { // which tidies up
            Assert.assertEquals(leftOver(), 0);
            next.prune(KEEP); // a writer may have been killed before it did
            Assert.assertEquals(next.getSteps().size(), KEEP);
            Assert.assertEquals(next.getSteps().get(KEEP - 1), (Long) before);
        }
    }

    private void awaitStep(Process process, long step) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (true) {
            List<Long> steps = CheckpointFolder.read(root).getSteps();
            if (!steps.isEmpty() && steps.get(steps.size() - 1) >= step) {
                return;
            }
            Assert.assertTrue(
                    process.isAlive() && System.nanoTime() < end, Files.readString(output));
            Thread.sleep(5);
        }
    }

    private Checkpoint newest() throws IOException {
        return Checkpoint.open(Checkpoint.list(root).lastEntry().getValue());
    }

    private long leftOver() throws IOException {
        try (Stream<Path> files = Files.list(root)) {
            return files.filter(file -> CheckpointFolder.isLeftOver(file.getFileName().toString()))
                    .count();
        }
    }

    @Test
    public void testThreeProcessesWriteOneCheckpoint() throws Exception {
        try (CheckpointFolder folder = CheckpointFolder.open(root)) {
            Process second = StoreProcess.start(output, root, "part", "1", "3", "5");
            Path other = Files.createTempFile("store", ".txt");
            Process third = StoreProcess.start(other, root, "part", "2", "3", "5");
            folder.timeout = Duration.ofSeconds(SECONDS);
            StoreProcess.write(folder, 5, 3, List.of(0));
            try (Checkpoint checkpoint = folder.openStep(5)) {
                Assert.assertEquals(checkpoint.verify(), List.of());
                Assert.assertTrue(StoreProcess.isRight(checkpoint));
            }
            Assert.assertEquals(second.waitFor(), 0, Files.readString(output));
            Assert.assertEquals(third.waitFor(), 0, Files.readString(other));
            Files.delete(other);
            try (Stream<Path> files = Files.list(root.resolve("step-00000005"))) {
                Assert.assertEquals(files.count(), 5); // three parts, the index and its checksum
            }
        }
    }

    @Test
    public void testAFolderInUseIsRefusedUntilTheProcessHasEnded() throws Exception {
        Process process = StoreProcess.start(output, root, "hold");
        try {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (!Files.readString(output).contains("" + root) && System.nanoTime() < end) {
                Thread.sleep(10);
            }
            Refusals.expect(
                    CheckpointException.class,
                    () -> CheckpointFolder.open(root),
                    "in use by another run, process " + process.pid());
            Assert.assertEquals(CheckpointFolder.read(root).getSteps(), List.of());
        } finally {
            process.destroyForcibly().waitFor();
        }
        CheckpointFolder.open(root).close();
    }
}
