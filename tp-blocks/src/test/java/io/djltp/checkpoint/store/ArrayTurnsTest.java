package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.safetensors.SafetensorsFile;
import io.djltp.torch.TensorBuffers;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** A weight and what is kept of it are read together, and lie in the file one after another. */
public class ArrayTurnsTest {

    private static final int BLOCK = BlockChecksums.BLOCK;

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("turns");
    }

    @AfterMethod(alwaysRun = true)
    public void removeFolder() throws IOException {
        DurableFiles.removeFolder(folder);
    }

    /**
     * Bytes of what comes before, of a weight, its momentum and its variance, and of what follows.
     */
    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {
            {5, 9 * BLOCK, 9 * BLOCK, 9 * BLOCK, 77},
            {BLOCK, 40 * BLOCK + 3, 40 * BLOCK + 3, 40 * BLOCK + 3, 1},
            {0, 41 * BLOCK - 1, 2 * BLOCK, 41 * BLOCK - 1, 0},
            {1, BLOCK, BLOCK, BLOCK, 3 * BLOCK},
            {1, BLOCK + 1, 33 * BLOCK + 9, BLOCK + 5, BLOCK + 1},
            {3, 30 * BLOCK, BLOCK - 1, 20, 9}, // too small for turns
        };
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void areReadTogetherAndLieInOrder(int a, int b, int c, int d, int e) throws IOException {
        for (boolean hurried : new boolean[] {false, true}) {
            write(hurried ? 2 : 1, new int[] {a, b, c, d, e}, hurried);
        }
    }

    private void write(long step, int[] sizes, boolean hurried) throws IOException {
        List<String> names = List.of("a", "w", "w/momentum", "w/variance", "z");
        Map<String, Double> done = new HashMap<>();
        double[] apart = {0};
        try (NDManager manager = NDManager.newBaseManager();
                CheckpointFolder checkpoints = CheckpointFolder.open(folder);
                CheckpointWriter writer = checkpoints.begin(step, "one", 1, List.of(0))) {
            Map<String, NDArray> arrays = new HashMap<>();
            Random random = new Random(step);
            for (int i = 0; i < sizes.length; i++) {
                String name = names.get(i);
                Shape shape = new Shape(sizes[i]);
                writer.declare(CutTensor.whole(name, DataType.UINT8, shape));
                arrays.put(name, Checkpoints.random(manager, DataType.UINT8, shape, random));
                double bytes = sizes[i];
                done.put(name, 0.0);
                writer.put(
                        name,
                        0,
                        arrays.get(name),
                        read -> {
                            Assert.assertTrue(read / bytes >= done.get(name), name);
                            done.put(name, read / bytes);
                            if (name.startsWith("w")) {
                                apart[0] = Math.max(apart[0], apart(done));
                            }
                        });
            }
            writer.stream(() -> hurried && done.get("w") > 0.5);
            writer.finish(new JsonObject());
            try (Checkpoint checkpoint = checkpoints.openNewest().orElseThrow()) {
                Assert.assertEquals(checkpoint.verify(), new ArrayList<>());
                for (String name : names) {
                    Assert.assertEquals(checkpoint.read(name, manager), arrays.get(name), name);
                }
            }
        }
        if (sizes[1] == sizes[2] && sizes[2] == sizes[3]) {
            double turn = (ArrayTurns.TURN + 2.0 * BLOCK) / sizes[1];
            Assert.assertTrue(apart[0] <= turn, apart[0] + " of the rows, a turn is " + turn);
        }
    }

    /** So that the disk can take it from where it lies. */
    @Test(timeOut = 60_000)
    public void theLargestLiesInTheFileAsInMemory() throws IOException {
        int unit;
        WriteChunk chunk = new WriteChunk();
        Path empty = folder.resolve("empty");
        try (PartFile file = new PartFile(empty, WriteChunk.SIZE, chunk, () -> false)) {
            unit = file.unit();
        }
        if (unit == 0) {
            throw new SkipException("this file system takes no direct writes");
        }
        try (NDManager manager = NDManager.newBaseManager();
                CheckpointFolder checkpoints = CheckpointFolder.open(folder);
                CheckpointWriter writer = checkpoints.begin(1, "one", 1, List.of(0))) {
            Shape shape = new Shape(40 * BLOCK);
            NDArray few = manager.zeros(new Shape(24), DataType.UINT8);
            NDArray many = manager.ones(shape, DataType.UINT8);
            writer.declare(CutTensor.whole("few", DataType.UINT8, few.getShape()));
            writer.declare(CutTensor.whole("many", DataType.UINT8, shape));
            writer.put("few", 0, few);
            writer.put("many", 0, many);
            writer.stream();
            writer.finish(new JsonObject());
            Path part = folder.resolve(StepNames.complete(1)).resolve(StepNames.part(0, 1));
            try (SafetensorsFile file = SafetensorsFile.open(part)) {
                long place = file.getDataStart() + file.getTensor("many").begin();
                int address = TensorBuffers.of(many)[0].alignmentOffset(0, unit);
                Assert.assertEquals(place % unit, address);
            }
        }
    }

    private static double apart(Map<String, Double> done) {
        double[] of = {done.get("w"), done.get("w/momentum"), done.get("w/variance")};
        return Math.max(of[0], Math.max(of[1], of[2])) - Math.min(of[0], Math.min(of[1], of[2]));
    }
}
