package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** How much is read, and by several ranks at once: a tensor of 9.5 MiB on three ranks. */
public class ReadingTest {

    private static final Shape SHAPE = new Shape(20_000, 125);
    private static final long ROW = 125 * Float.BYTES;
    private static final CutTensor TENSOR =
            new CutTensor("w", DataType.FLOAT32, SHAPE, 0, Cut.balanced(20_000, 3));

    private final Path root = TestFolder.create();
    private NDManager manager;
    private NDArray whole;

    @BeforeClass
    public void write() throws IOException {
        manager = NDManager.newBaseManager();
        whole = Checkpoints.random(manager, DataType.FLOAT32, SHAPE, new Random(5));
        Checkpoints.write(root, 1, 3, List.of(TENSOR), Map.of("w", whole), new JsonObject());
    }

    @AfterClass(alwaysRun = true)
    public void remove() throws IOException {
        manager.close();
    }

    private Checkpoint open() throws IOException {
        return Checkpoint.open(root.resolve("step-00000001"));
    }

    /** Besides its own bytes, a block at either end of what it reads of a part. */
    @Test
    public void testARankReadsTheBlocksOfItsRowsAndNoOthers() throws IOException {
        for (int ranks = 1; ranks <= 8; ranks++) {
            Cut cut = Cut.balanced(20_000, ranks);
            for (int rank = 0; rank < ranks; rank++) {
                try (Checkpoint checkpoint = open()) {
                    long headers = checkpoint.getBytesRead();
                    Assert.assertEquals(headers, 3L * CheckpointIndex.BLOCK);
                    ShardRange rows = cut.getRange(rank);
                    NDArray read = checkpoint.read("w", 0, List.of(rows), manager);
                    assertSame(read, rows);
                    long parts = (rows.end() - 1) * 3 / 20_000 - rows.start() * 3 / 20_000 + 1;
                    long more = checkpoint.getBytesRead() - headers - rows.length() * ROW;
                    Assert.assertTrue(
                            more >= 0 && more <= parts * 2 * CheckpointIndex.BLOCK,
                            rank + " of " + ranks + ": " + more + " for " + parts + " parts");
                }
            }
        }
    }

    /** Every row has some of a rank's columns: each block is read, and none twice. */
    @Test
    public void testARankOfAnotherAxisReadsEveryBlockOnce() throws IOException {
        try (Checkpoint checkpoint = open()) {
            long headers = checkpoint.getBytesRead();
            List<ShardRange> columns = List.of(new ShardRange(100, 20), new ShardRange(3, 7));
            NDArray read = checkpoint.read("w", 1, columns, manager);
            Assert.assertEquals(
                    Checkpoints.bits(read), Checkpoints.bits(Checkpoints.slice(whole, 1, columns)));
            long all = 0;
            for (String file : checkpoint.getFiles()) {
                all += Files.size(checkpoint.getPath().resolve(file));
            }
            Assert.assertTrue(checkpoint.getBytesRead() - headers <= all);
        }
    }

    @Test
    public void testIntoTheMemoryOfAnArray() throws IOException {
        List<ShardRange> rows = List.of(new ShardRange(6_000, 9_000), new ShardRange(3, 7));
        try (Checkpoint checkpoint = open()) {
            NDArray target = manager.zeros(new Shape(9_007L * 125)); // of another shape
            checkpoint.readInto("w", 0, rows, target);
            Assert.assertEquals(
                    Checkpoints.bits(target), Checkpoints.bits(Checkpoints.slice(whole, 0, rows)));
            NDArray all = manager.zeros(SHAPE);
            checkpoint.readInto("w", 0, null, all);
            Assert.assertEquals(Checkpoints.bits(all), Checkpoints.bits(whole));
            for (NDArray wrong :
                    List.of(
                            manager.zeros(new Shape(9_008, 125)),
                            manager.zeros(new Shape(9_007, 125), DataType.FLOAT64),
                            manager.zeros(new Shape(125, 9_007)).transpose())) {
                Refusals.throwsArgument(() -> checkpoint.readInto("w", 0, rows, wrong));
            }
        }
    }

    /** Memory gets what was checked, and nothing of a block that is damaged. */
    @Test
    public void testADamagedBlockDoesNotReachTheArray() throws IOException {
        Path other = root.resolve("other");
        Checkpoints.write(other, 9, 3, List.of(TENSOR), Map.of("w", whole), new JsonObject());
        Path file = other.resolve("step-00000009").resolve("part-1-of-3.safetensors");
        byte[] bytes = Files.readAllBytes(file);
        bytes[5 * CheckpointIndex.BLOCK + 9] ^= 4;
        Files.write(file, bytes);
        NDArray target = manager.zeros(SHAPE);
        try (Checkpoint checkpoint = Checkpoint.open(other.resolve("step-00000009"))) {
            Assert.expectThrows(
                    CheckpointException.class, () -> checkpoint.readInto("w", 0, null, target));
        }
        IntBuffer read = Checkpoints.bits(target).asIntBuffer();
        IntBuffer right = Checkpoints.bits(whole).asIntBuffer();
        int copied = 0;
        for (int i = 0; i < read.limit(); i++) {
            if (read.get(i) != 0) {
                Assert.assertEquals(read.get(i), right.get(i), "element " + i);
                copied++;
            }
        }
        Assert.assertTrue(copied > read.limit() / 3 && copied < read.limit() * 2 / 3, "" + copied);
    }

    @Test
    public void testRanksReadAtTheSameTime() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try (Checkpoint checkpoint = open()) {
            List<Future<?>> done = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                ShardRange rows = new ShardRange(i * 450L, 1000 + i * 31L);
                done.add(
                        threads.submit(
                                () -> {
                                    assertSame(
                                            checkpoint.read("w", 0, List.of(rows), manager), rows);
                                    return null;
                                }));
            }
            for (Future<?> each : done) {
                each.get(60, TimeUnit.SECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private void assertSame(NDArray read, ShardRange rows) {
        Assert.assertEquals(
                Checkpoints.bits(read),
                Checkpoints.bits(Checkpoints.slice(whole, 0, List.of(rows))));
    }
}
