package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.checkpoint.CheckpointWriter.Source;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/** One clear error for what cannot be used: which file or tensor, and what to do. */
public class RefusedCheckpointsTest {

    private final Path root = TestFolder.create();
    private Path step;
    private CheckpointFolder folder;

    @BeforeClass
    public void write() throws IOException {
        folder = CheckpointFolder.open(root);
        StoreProcess.write(folder, 4, 3, List.of(0, 1, 2));
        step = root.resolve("step-00000004");
    }

    @AfterClass(alwaysRun = true)
    public void remove() throws IOException {
        folder.close();
    }

    private static void assertRefused(Assert.ThrowingRunnable what, String... words) {
        Refusals.expect(CheckpointException.class, what, words);
    }

    private static void assertIllegal(Assert.ThrowingRunnable what, String... words) {
        Refusals.throwsArgument(what, words);
    }

    /** What is wrong of an index with the right checksum, and why it cannot be used. */
    @DataProvider
    public static Object[][] indexes() {
        return new Object[][] {
            index(json -> json.addProperty("format", "x"), "its format is 'x'"),
            index(
                    json -> json.addProperty("format_version", 3),
                    "in version 3 of the format, and this is"),
            index(json -> json.remove("tensors"), "it is not an index"),
            index(
                    json -> Set.copyOf(json.keySet()).forEach(json::remove),
                    "it is not an index: a member is missing"),
            index(json -> weight(json).addProperty("axis", 1), "it is not an index"),
            index(json -> weight(json).addProperty("dtype", "F32"), "declared another one"),
            index(
                    json -> ranges(json).add(ranges(json).get(2)),
                    "the ranges of tensor head/weight are of 4 parts, and there are files of 3")
        };
    }

    private static Object[] index(Consumer<JsonObject> change, String why) {
        return new Object[] {change, why};
    }

    private static JsonObject weight(JsonObject index) {
        return index.getAsJsonArray("tensors").get(0).getAsJsonObject();
    }

    private static JsonArray ranges(JsonObject index) {
        return weight(index).getAsJsonArray("ranges");
    }

    @Test(dataProvider = "indexes")
    public void testAnotherIndex(Consumer<JsonObject> change, String why) throws Exception {
        String right = Files.readString(step.resolve(CheckpointIndex.FILE));
        JsonObject json = JsonParser.parseString(right).getAsJsonObject();
        change.accept(json);
        Checkpoints.writeIndex(step, json.toString());
        try {
            assertRefused(() -> Checkpoint.open(step), step.toString(), why);
        } finally {
            Checkpoints.writeIndex(step, right);
        }
        Checkpoint.open(step).close();
    }

    @Test
    public void testMissingShardsAreNamed() throws IOException {
        Path first = step.resolve("part-0-of-3.safetensors");
        Path last = step.resolve("part-2-of-3.safetensors");
        Files.move(first, root.resolve("a"));
        assertRefused(() -> Checkpoint.open(step), "part-0-of-3.safetensors is missing");
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
        Assert.assertTrue(Checkpoint.list(empty).isEmpty());
        Files.delete(empty);
    }

    /** Not even silently: a run would go on from an older one. */
    @Test
    public void testWhatHasTheNameOfACheckpointAndIsNoFolder() throws IOException {
        Files.writeString(root.resolve("step-00000099.txt"), "x"); // has another name
        Path newest = root.resolve("step-00000099");
        String text = newest + " has the name of a checkpoint and is no folder";
        Files.writeString(newest, "x");
        assertRefused(folder::getSteps, text);
        assertRefused(() -> Checkpoint.list(root), text);
        Files.delete(newest);
        Files.createSymbolicLink(newest, root.resolve("gone"));
        assertRefused(folder::getSteps, text);
        assertRefused(() -> Checkpoint.list(root), text);
        Files.delete(newest);
        Assert.assertEquals(folder.getSteps(), List.of(4L));
    }

    @Test
    public void testTheFolderIsInUseOrReadOnly() throws IOException {
        assertRefused(() -> CheckpointFolder.open(root), "in use by another run, process");
        assertRefused(() -> CheckpointFolder.open(root), "in use by another run, process");
        CheckpointFolder reader = CheckpointFolder.read(root);
        assertRefused(() -> reader.begin(5, "", 1, List.of(0)), "opened to read only");
        assertRefused(() -> folder.begin(4, "", 1, List.of(0)), "nothing is written over it");
        Path other = Files.createDirectory(root.resolve("other"));
        assertRefused(() -> CheckpointFolder.join(other), "not open in the process of rank 0");
        Files.delete(other);
    }

    /** An interrupted thread ends a channel that it uses: the folder is given back before. */
    @Test
    public void testAnInterruptedThreadGivesTheFolderBack() throws IOException {
        Path path = root.resolve("interrupted");
        CheckpointFolder opened = CheckpointFolder.open(path);
        Assert.assertTrue(Files.size(path.resolve(".lock")) > 0);
        Thread.currentThread().interrupt();
        try {
            opened.close();
        } finally {
            Assert.assertTrue(Thread.interrupted(), "the thread stays interrupted");
        }
        Assert.assertEquals(Files.size(path.resolve(".lock")), 0);
        CheckpointFolder.open(path).close();
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
        Cut cut = Cut.balanced(6, 2);
        CutTensor tensor = new CutTensor("w", DataType.FLOAT32, shape, 0, cut);
        assertIllegal(
                () -> new CutTensor("w", DataType.FLOAT32, shape, 1, cut),
                "the length 2, and its cut 6");
        assertIllegal(() -> new CutTensor("w", DataType.FLOAT32, shape, 2, cut), "along axis 2");
        assertIllegal(() -> CutTensor.whole("w", DataType.BFLOAT16, shape), "bfloat16");
        try (NDManager manager = NDManager.newBaseManager();
                CheckpointWriter writer = folder.begin(9, "", 2, List.of(1))) {
            NDArray whole = manager.create(shape);
            assertIllegal(() -> Source.of(tensor, 1, whole), "float32 (3, 2), not float32 (6, 2)");
            writer.add(tensor, part -> out -> {});
            assertIllegal(() -> writer.add(tensor, part -> null), "a second tensor named w");
            Refusals.expect(
                    CheckpointException.class, writer::stream, "w (3, 2) was not written to its");
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
        }
    }
}
