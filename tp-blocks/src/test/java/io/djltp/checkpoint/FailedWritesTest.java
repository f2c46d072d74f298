package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** What cannot be written is an error, and the checkpoints that are there stay as they are. */
public class FailedWritesTest {

    private static final int ALL = 3 * 533_000; // about the bytes of a checkpoint

    private Path root;
    private CheckpointFolder folder;

    @BeforeMethod
    public void writeOne() throws IOException {
        root = TestFolder.create();
        folder = CheckpointFolder.open(root);
        write(1);
    }

    @AfterMethod(alwaysRun = true)
    public void removeFolder() throws IOException {
        folder.close();
    }

    private void write(long step) throws IOException {
        StoreProcess.write(folder, step, StoreProcess.PARTS, Checkpoints.all(StoreProcess.PARTS));
    }

    private void assertOnlyTheFirstIsThere() throws IOException {
        Assert.assertEquals(folder.getSteps(), List.of(1L));
        try (Checkpoint checkpoint = folder.openStep(1)) {
            Assert.assertEquals(checkpoint.verify(), List.of());
            Assert.assertTrue(StoreProcess.isRight(checkpoint));
        }
        try (Stream<Path> files = Files.list(folder.getPath())) {
            Assert.assertEquals(files.count(), 2, "the checkpoint and the lock");
        }
    }

    /** Fails after so many bytes, as a disk that is full then. */
    private static void fill(CheckpointFolder of, long bytes) {
        long[] left = {bytes};
        Checkpoints.beforeWrites(
                of,
                count -> {
                    left[0] -= count;
                    if (left[0] < 0) {
                        throw new IOException("No space left on device");
                    }
                });
    }

    @Test
    public void testADiskThatIsFullAfterAnyNumberOfBytes() throws IOException {
        for (long bytes = 0; bytes < ALL; bytes += ALL / 15) {
            fill(folder, bytes);
            CheckpointException e = Assert.expectThrows(CheckpointException.class, () -> write(2));
            Assert.assertTrue(
                    e.getMessage()
                            .endsWith("step-00000002 cannot be written: No space left on device"),
                    e.getMessage());
            assertOnlyTheFirstIsThere();
        }
        fill(folder, Long.MAX_VALUE);
        write(2);
        Assert.assertEquals(folder.getSteps(), List.of(1L, 2L));
    }

    @Test
    public void testAFullTmpfs() throws Exception {
        Path disk = root.resolve("disk");
        Files.createDirectory(disk);
        mount("-t", "tmpfs", "-o", "size=2560k", "tmpfs", disk.toString());
        try (CheckpointFolder small = CheckpointFolder.open(disk)) {
            folder.close();
            folder = small;
            write(1); // 1.6 MB
            Refusals.expect(
                    CheckpointException.class,
                    () -> write(2),
                    "step-00000002 cannot be written: No space left");
            assertOnlyTheFirstIsThere();
            run("mount", "-o", "remount,size=8m", disk.toString()); // somebody made room
            write(2);
            Assert.assertEquals(small.getSteps(), List.of(1L, 2L));
        } finally {
            run("umount", disk.toString());
        }
    }

    @Test
    public void testAReadOnlyFolder() throws Exception {
        Path disk = root.resolve("disk");
        Files.createDirectory(disk);
        mount("-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", disk.toString());
        try {
            CheckpointException e =
                    Assert.expectThrows(
                            CheckpointException.class, () -> CheckpointFolder.open(disk));
            Assert.assertTrue(
                    e.getMessage()
                            .endsWith(
                                    "cannot be written to "
                                            + disk
                                            + ", choose another folder: Read-only file system"),
                    e.getMessage());
            Path below = disk.resolve("out");
            Assert.expectThrows(CheckpointException.class, () -> CheckpointFolder.open(below));
        } finally {
            run("umount", disk.toString());
        }
    }

    /** Only root may, in a container that lets him. */
    private static void mount(String... arguments) throws Exception {
        if (run(Stream.concat(Stream.of("mount"), Stream.of(arguments)).toArray(String[]::new))
                != 0) {
            throw new SkipException("a tmpfs cannot be mounted by this user");
        }
    }

    private static int run(String... command) throws Exception {
        Process process;
        try {
            process =
                    new ProcessBuilder(command)
                            .redirectErrorStream(true)
                            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                            .start();
        } catch (IOException e) {
            throw new SkipException("there is no " + command[0], e);
        }
        Assert.assertTrue(process.waitFor(20, TimeUnit.SECONDS));
        return process.exitValue();
    }

    @Test
    public void testTheFolderVanishesDuringTheWrite() throws IOException {
        CutTensor tensor = CutTensor.whole("w", DataType.INT8, new Shape(4));
        try (CheckpointWriter writer = folder.begin(2, "one rank", 1, List.of(0))) {
            writer.add(tensor, part -> out -> out.write(ByteBuffer.allocate(4)));
            writer.stream();
            Utils.deleteQuietly(root);
            Assert.expectThrows(CheckpointException.class, () -> writer.finish(new JsonObject()));
        }
        folder.close();
        folder = CheckpointFolder.open(root);
        write(2);
        Assert.assertEquals(folder.getSteps(), List.of(2L));
    }

    @Test
    public void testAProcessThatNeverWritesItsPart() throws IOException {
        folder.timeout = Duration.ofMillis(200);
        CheckpointException e =
                Assert.expectThrows(
                        CheckpointException.class,
                        () -> StoreProcess.write(folder, 2, 3, List.of(1)));
        Assert.assertTrue(e.getMessage().contains("parts [0, 2] of 3"), e.getMessage());
        assertOnlyTheFirstIsThere();
        // ... and one that says why
        try (CheckpointFolder other = CheckpointFolder.join(root)) {
            fill(other, 1000);
            other.begin(2, "", 3, List.of()).close(); // the attempt that it missed
            Assert.expectThrows(
                    CheckpointException.class,
                    () -> StoreProcess.write(other, 2, 3, List.of(0, 2)));
        }
        folder.timeout = Duration.ofMinutes(1);
        e =
                Assert.expectThrows(
                        CheckpointException.class,
                        () -> StoreProcess.write(folder, 2, 3, List.of(1)));
        Assert.assertTrue(e.getMessage().contains("No space left"), e.getMessage());
        assertOnlyTheFirstIsThere();
    }

    /** What another process has begun meanwhile stays. */
    @Test
    public void testAProcessThatIsAhead() throws IOException {
        folder.timeout = Duration.ofMillis(200);
        try (CheckpointFolder other = CheckpointFolder.join(root);
                CheckpointWriter next = other.begin(3, "", 3, List.of(0, 2))) {
            StoreProcess.add(next, 3, 3);
            next.stream();
            Assert.expectThrows(
                    CheckpointException.class, () -> StoreProcess.write(folder, 2, 3, List.of(1)));
            next.finish(new JsonObject());
            StoreProcess.write(folder, 3, 3, List.of(1));
        }
        try (Checkpoint checkpoint = folder.openStep(3)) {
            Assert.assertTrue(StoreProcess.isRight(checkpoint));
        }
    }

    @Test
    public void testProcessesThatDeclareDifferentTensors() throws IOException {
        try (CheckpointFolder other = CheckpointFolder.join(root);
                CheckpointWriter writer = other.begin(2, "", 3, List.of(0, 2))) {
            Cut cut = Cut.balanced(6, 3);
            writer.add(
                    new CutTensor(StoreProcess.NAME, DataType.INT8, new Shape(6), 0, cut),
                    part -> out -> out.write(ByteBuffer.allocate(2)));
            writer.stream();
            writer.finish(new JsonObject());
            Refusals.expect(
                    CheckpointException.class,
                    () -> StoreProcess.write(folder, 2, 3, List.of(1)),
                    "its process declared");
        }
        assertOnlyTheFirstIsThere();
    }
}
