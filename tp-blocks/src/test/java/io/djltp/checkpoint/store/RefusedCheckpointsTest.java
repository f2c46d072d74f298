package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/** One clear error for what cannot be used: which file or tensor, and what to do. */
public class RefusedCheckpointsTest {

    private Path root;
    private Path step;
    private CheckpointFolder folder;

    @BeforeClass
    public void write() throws IOException {
        root = Files.createTempDirectory("refused");
        folder = CheckpointFolder.open(root);
        StoreProcess.write(folder, 4, 3, List.of(0, 1, 2));
        step = root.resolve("step-00000004");
    }

    @AfterClass(alwaysRun = true)
    public void remove() throws IOException {
        folder.close();
        DurableFiles.removeFolder(root);
    }

    private static void assertRefused(Assert.ThrowingRunnable what, String... words) {
        CheckpointException e = Assert.expectThrows(CheckpointException.class, what);
        for (String word : words) {
            Assert.assertTrue(e.getMessage().contains(word), word + " in: " + e.getMessage());
        }
    }

    private static void assertIllegal(Assert.ThrowingRunnable what, String... words) {
        IllegalArgumentException e = Assert.expectThrows(IllegalArgumentException.class, what);
        for (String word : words) {
            Assert.assertTrue(e.getMessage().contains(word), word + " in: " + e.getMessage());
        }
    }

    @DataProvider
    public static Object[][] indexes() {
        return new Object[][] {
            {change("format", "somebody's"), "its format is 'somebody's'"},
            {
                (Consumer<JsonObject>) json -> json.addProperty("format_version", 2),
                "version 2 of the format, and this is"
            },
            {(Consumer<JsonObject>) json -> json.remove("tensors"), "it is not an index"},
            {
                (Consumer<JsonObject>) json -> Set.copyOf(json.keySet()).forEach(json::remove),
                "it is not an index: a member is missing"
            },
            {
                (Consumer<JsonObject>)
                        json ->
                                json.getAsJsonArray("tensors")
                                        .get(0)
                                        .getAsJsonObject()
                                        .addProperty("axis", 1),
                "it is not an index"
            },
            {
                (Consumer<JsonObject>)
                        json ->
                                json.getAsJsonArray("tensors")
                                        .get(0)
                                        .getAsJsonObject()
                                        .addProperty("dtype", "F32"),
                "declared another one"
            },
            {
                changeRanges(ranges -> ranges.add(ranges.get(2))),
                "the ranges of tensor head/weight are of 4 parts, and there are files of 3"
            },
            {
                changeRanges(ranges -> ranges.set(0, ranges.set(1, ranges.get(0)))),
                "part-0-of-3.safetensors has other ranges of the tensors than the index says"
            },
            {
                (Consumer<JsonObject>)
                        json ->
                                json.getAsJsonArray("tensors")
                                        .add(json.getAsJsonArray("tensors").get(0)),
                "it has two tensors head/weight"
            },
        };
    }

    private static Consumer<JsonObject> changeRanges(Consumer<JsonArray> change) {
        return json ->
                change.accept(
                        json.getAsJsonArray("tensors")
                                .get(0)
                                .getAsJsonObject()
                                .getAsJsonArray("ranges"));
    }

    private static Consumer<JsonObject> change(String key, String value) {
        return json -> json.addProperty(key, value);
    }

    /** With the right checksum: what another version of the library may have written. */
    @Test(dataProvider = "indexes")
    public void testAnotherIndex(Consumer<JsonObject> change, String why) throws Exception {
        Path index = step.resolve(CheckpointIndex.FILE);
        Path sum = step.resolve(CheckpointIndex.CHECKSUM_FILE);
        byte[] rightIndex = Files.readAllBytes(index);
        byte[] rightSum = Files.readAllBytes(sum);
        JsonObject json = JsonParser.parseString(Files.readString(index)).getAsJsonObject();
        change.accept(json);
        Files.writeString(index, json.toString());
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(index));
        Files.writeString(sum, HexFormat.of().formatHex(digest) + "  index.json\n");
        try {
            assertRefused(() -> Checkpoint.open(step), step.toString(), why);
        } finally {
            Files.write(index, rightIndex);
            Files.write(sum, rightSum);
        }
        Checkpoint.open(step).close();
    }

    @Test
    public void testWhichVersionsReadEachOther() {
        Assert.assertTrue(CheckpointIndex.reads("0.1.0", "0.1.3-SNAPSHOT"));
        Assert.assertTrue(CheckpointIndex.reads("development", "0.3.0"));
        Assert.assertFalse(CheckpointIndex.reads("0.1.0", "0.2.0"));
        Assert.assertFalse(CheckpointIndex.reads("2.1.0", "1.1.0"));
    }

    @Test
    public void testMissingShardsAreNamed() throws IOException {
        Path first = step.resolve("part-0-of-3.safetensors");
        Path last = step.resolve("part-2-of-3.safetensors");
        Files.move(first, root.resolve("a"));
        assertRefused(() -> Checkpoint.open(step), "part-0-of-3.safetensors is missing");
        assertRefused(() -> folder.openNewest(), "part-0-of-3.safetensors is missing");
        Files.move(last, root.resolve("b"));
        assertRefused(
                () -> Checkpoint.open(step),
                "part-0-of-3.safetensors, part-2-of-3.safetensors are missing");
        Files.move(root.resolve("a"), first);
        Files.move(root.resolve("b"), last);
    }

    @Test
    public void testWhatIsNoCheckpoint() throws IOException {
        assertRefused(() -> Checkpoint.open(root), "index.json is missing");
        assertRefused(() -> CheckpointFolder.read(root.resolve("no")), "not a folder");
        assertRefused(() -> folder.openStep(5), "no checkpoint of step 5, but of [4]");
        Path empty = Files.createDirectory(root.resolve("empty"));
        Assert.assertTrue(CheckpointFolder.read(empty).openNewest().isEmpty());
        Files.delete(empty);
    }

    @Test
    public void testTheFolderIsInUseOrReadOnly() throws IOException {
        assertRefused(() -> CheckpointFolder.open(root), "in use by another run, process");
        assertRefused(() -> CheckpointFolder.open(root), "in use by another run, process");
        CheckpointFolder reader = CheckpointFolder.read(root);
        assertRefused(() -> reader.begin(5, "", 1, List.of(0)), "opened to read only");
        assertRefused(() -> folder.begin(4, "", 1, List.of(0)), "nothing is written over it");
        CheckpointFolder member = CheckpointFolder.join(root);
        assertRefused(() -> member.prune(1), "process of rank 0");
        Path other = Files.createDirectory(root.resolve("other"));
        assertRefused(() -> CheckpointFolder.join(other), "not open in the process of rank 0");
        Files.delete(other);
    }

    /** Words, and no class of an exception. */
    @Test
    public void testAPathThatIsNoFolder() throws IOException {
        Path file = Files.createFile(root.resolve("file"));
        assertRefused(
                () -> CheckpointFolder.open(file),
                "Checkpoints cannot be written to " + file + ", choose another folder: " + file,
                " is a file");
        Files.delete(file);
        Path none = Path.of("/proc/checkpoints");
        if (Files.isDirectory(none.getParent())) { // of Linux, which makes nothing there
            assertRefused(() -> CheckpointFolder.open(none), ": " + none + " does not exist, and");
        }
    }

    @Test
    public void testWhatIsNotInIt() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(step);
                NDManager manager = NDManager.newBaseManager()) {
            assertRefused(() -> checkpoint.read("x", manager), "no tensor x, but [head/weight]");
            List<ShardRange> outside = List.of(new ShardRange(40_000, 2));
            assertIllegal(
                    () -> checkpoint.read(StoreProcess.NAME, 0, outside, manager),
                    "no range 40000 to 40002");
            assertIllegal(
                    () -> checkpoint.read(StoreProcess.NAME, 2, outside, manager), "no axis 2");
        }
    }

    @Test
    public void testWhatCannotBeWritten() throws IOException {
        Shape shape = new Shape(6, 2);
        CutTensor tensor = new CutTensor("w", DataType.FLOAT32, shape, 0, Cut.balanced(6, 2));
        assertIllegal(
                () -> new CutTensor("w", DataType.FLOAT32, shape, 1, Cut.balanced(6, 2)),
                "the length 2, and its cut 6");
        assertIllegal(
                () -> new CutTensor("w", DataType.FLOAT32, shape, 2, Cut.balanced(6, 2)),
                "along axis 2");
        assertIllegal(() -> CutTensor.whole("w", DataType.BFLOAT16, shape), "bfloat16");
        try (NDManager manager = NDManager.newBaseManager();
                CheckpointWriter writer = folder.begin(9, "", 2, List.of(1))) {
            NDArray array = manager.create(shape);
            writer.declare(tensor);
            assertIllegal(() -> writer.declare(tensor), "A tensor w was declared");
            CutTensor three = new CutTensor("x", DataType.FLOAT32, shape, 0, Cut.balanced(6, 3));
            assertIllegal(() -> writer.declare(three), "into 3 parts, and the checkpoint has 2");
            assertIllegal(() -> writer.put("w", 1, array), "float32 (3, 2), not float32 (6, 2)");
            NDArray part = manager.create(new Shape(3, 2));
            assertIllegal(() -> writer.put("w", 0, part), "not this process's");
            assertIllegal(() -> writer.put("v", 1, part), "not this process's");
            IllegalStateException e =
                    Assert.expectThrows(IllegalStateException.class, writer::stream);
            Assert.assertEquals(e.getMessage(), "Part 1 of tensor w was not put");
        }
        Assert.assertEquals(folder.getSteps(), List.of(4L));
    }

    @Test
    public void testOldOnesArePruned() throws IOException {
        Path path = root.resolve("pruned");
        try (CheckpointFolder many = CheckpointFolder.open(path)) {
            for (long each = 1; each <= 5; each++) {
                StoreProcess.write(many, each, 1, List.of(0));
            }
            Assert.assertEquals(many.prune(7), List.of());
            Assert.assertEquals(many.prune(2), List.of(1L, 2L, 3L));
            Assert.assertEquals(many.getSteps(), List.of(4L, 5L));
            assertIllegal(() -> many.prune(0), "One checkpoint has to stay");
        }
        DurableFiles.removeFolder(path);
    }
}
