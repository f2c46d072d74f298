package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Whatever becomes of a byte of a checkpoint is found, with the file and the bytes, and nothing
 * that is not as it was written is ever returned. Longer: {@code
 * -Ddjltp.checkpoint.mutations=20000}.
 */
public class MutationTest {

    private static final Pattern DAMAGE = Pattern.compile("(.*), bytes (\\d+) to (\\d+): .*");

    private static final int MUTATIONS = Integer.getInteger("djltp.checkpoint.mutations", 1200);
    private static final int PARTS = 3;
    private static final String HEAD = "head/weight";
    private static final List<CutTensor> TENSORS =
            List.of(
                    new CutTensor(
                            HEAD,
                            DataType.FLOAT32,
                            new Shape(6001, 40),
                            0,
                            Cut.balanced(6001, PARTS)),
                    new CutTensor(
                            "out/weight",
                            DataType.FLOAT64,
                            new Shape(7, 50),
                            1,
                            Cut.ofLengths(10, 0, 40)),
                    CutTensor.whole("bias", DataType.FLOAT32, new Shape(40)));

    private final Map<String, byte[]> files = new TreeMap<>(); // as they were written
    private final Map<String, NDArray> whole = new HashMap<>();
    private NDManager manager;
    private Path root;
    private Path folder;
    private Path older;

    @BeforeClass
    public void write() throws IOException {
        manager = NDManager.newBaseManager();
        root = TestFolder.create();
        Random random = new Random(1);
        for (long step : new long[] {10, 20}) {
            for (CutTensor tensor : TENSORS) {
                whole.put(
                        tensor.name(),
                        Checkpoints.random(manager, tensor.type(), tensor.shape(), random));
            }
            Checkpoints.write(root, step, PARTS, TENSORS, whole, new JsonObject());
        }
        older = root.resolve("step-00000010");
        folder = root.resolve("step-00000020");
        try (var list = Files.list(folder)) {
            for (Path file : list.toList()) {
                files.put(file.getFileName().toString(), Files.readAllBytes(file));
            }
        }
        Assert.assertEquals(files.size(), PARTS + 2);
    }

    @AfterClass
    public void remove() throws IOException {
        manager.close();
    }

    /** A way to spoil a file. */
    private enum Kind {
        FLIP,
        TRUNCATE,
        APPEND,
        ZERO,
        OVERWRITE,
        REMOVE,
        OF_ANOTHER_STEP,
        OF_ANOTHER_PART,
        MOVE_BYTES
    }

    @Test
    public void testEveryMutationIsFoundAndNeverLoaded() throws IOException {
        Random random = new Random(2);
        List<String> names = List.copyOf(files.keySet());
        Map<Kind, Integer> found = new TreeMap<>();
        for (int done = 0; done < MUTATIONS; ) {
            String name = names.get(random.nextInt(names.size()));
            Kind kind = Kind.values()[random.nextInt(Kind.values().length)];
            byte[] original = files.get(name);
            byte[] mutated = mutate(kind, name, random);
            if (Arrays.equals(mutated, original)) {
                continue;
            }
            Path file = folder.resolve(name);
            if (mutated == null) {
                Files.delete(file);
            } else {
                Files.write(file, mutated);
            }
            String what = "mutation " + done + ", " + kind + " of " + name;
            assertFound(name, firstDifference(original, mutated), what);
            Files.write(file, original);
            found.merge(kind, 1, Integer::sum);
            done++;
        }
        Assert.assertEquals(found.size(), Kind.values().length, "kinds tried: " + found);
        try (Checkpoint checkpoint = Checkpoint.open(folder)) {
            Assert.assertEquals(checkpoint.verify(), List.of());
        }
    }

    /** Returns the mutated file, or {@code null} if it is removed. */
    private byte[] mutate(Kind kind, String name, Random random) throws IOException {
        byte[] bytes = files.get(name).clone();
        int begin = place(bytes.length, random);
        int end = begin + 1 + random.nextInt(Math.min(bytes.length - begin, 5000));
        switch (kind) {
            case FLIP:
                bytes[begin] ^= (byte) (1 << random.nextInt(8));
                return bytes;
            case TRUNCATE:
                return Arrays.copyOf(bytes, begin);
            case APPEND:
                return Arrays.copyOf(bytes, bytes.length + 1 + random.nextInt(5000));
            case ZERO:
                Arrays.fill(bytes, begin, end, (byte) 0);
                return bytes;
            case OVERWRITE:
                byte[] noise = new byte[end - begin];
                random.nextBytes(noise);
                System.arraycopy(noise, 0, bytes, begin, noise.length);
                return bytes;
            case REMOVE:
                return null;
            case OF_ANOTHER_STEP:
                return Files.readAllBytes(older.resolve(name));
            case OF_ANOTHER_PART:
                List<String> names = List.copyOf(files.keySet());
                return files.get(names.get(random.nextInt(names.size())));
            default:
                int to = place(bytes.length, random);
                int length = Math.min(end - begin, bytes.length - to);
                System.arraycopy(bytes.clone(), begin, bytes, to, length);
                return bytes;
        }
    }

    /** The index and the headers are at the beginning of their files: as often as the rest. */
    private static int place(int length, Random random) {
        return random.nextBoolean()
                ? random.nextInt(Math.min(length, 600))
                : random.nextInt(length);
    }

    private static long firstDifference(byte[] original, byte[] mutated) {
        return mutated == null ? -1 : Arrays.mismatch(original, mutated);
    }

    private void assertFound(String name, long at, String what) throws IOException {
        String index = name.equals(CheckpointIndex.CHECKSUM_FILE) ? CheckpointIndex.FILE : name;
        try (Checkpoint checkpoint = Checkpoint.open(folder)) {
            List<String> damages = checkpoint.verify();
            Assert.assertFalse(damages.isEmpty(), what);
            Matcher damage = DAMAGE.matcher(damages.get(0));
            Assert.assertTrue(damage.matches(), damages.get(0));
            Assert.assertEquals(damage.group(1), name, what);
            Assert.assertTrue(
                    Long.parseLong(damage.group(2)) <= at && at < Long.parseLong(damage.group(3)),
                    what + " at " + at + ": " + damages);
            assertNothingElseIsRead(checkpoint, what);
        } catch (CheckpointException e) {
            Assert.assertTrue(e.getMessage().contains(index), what + ": " + e.getMessage());
        }
    }

    /** What is read in spite of a damage elsewhere is as it was written. */
    private void assertNothingElseIsRead(Checkpoint checkpoint, String what) throws IOException {
        int refused = 0;
        for (CutTensor tensor : TENSORS) {
            try (NDArray array = checkpoint.read(tensor.name(), manager)) {
                Assert.assertEquals(
                        Checkpoints.bits(array), Checkpoints.bits(whole.get(tensor.name())), what);
            } catch (CheckpointException e) {
                refused++;
            }
        }
        Assert.assertTrue(refused > 0, what);
    }

    /** The index and its checksum together, of another step: a folder that was misnamed. */
    @Test
    public void testTheFilesOfAnotherStep() throws IOException {
        Path copy = root.resolve("step-00000030");
        Files.createDirectory(copy);
        for (Map.Entry<String, byte[]> each : files.entrySet()) {
            Files.write(copy.resolve(each.getKey()), each.getValue());
        }
        Refusals.expect(CheckpointException.class, () -> Checkpoint.open(copy), "step 20");
        Utils.deleteQuietly(copy);
    }
}
