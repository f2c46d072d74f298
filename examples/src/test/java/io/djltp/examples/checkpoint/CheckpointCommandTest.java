package io.djltp.examples.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.Checkpoints;
import io.djltp.checkpoint.CutTensor;
import io.djltp.cut.Cut;
import io.djltp.examples.TpRun;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/** The commands on a small checkpoint, and the errors on what is none. */
public class CheckpointCommandTest {

    private static final String WEIGHT = "head/weight";

    private final Path root = TestFolder.create();
    private Path folder;

    @BeforeClass
    public void write() throws IOException {
        folder = root.resolve("run");
        CutTensor weight =
                new CutTensor(WEIGHT, DataType.FLOAT32, new Shape(5, 3), 0, Cut.ofLengths(2, 3));
        CutTensor bias = CutTensor.whole("bias", DataType.INT64, new Shape(4));
        JsonObject values = new JsonObject();
        values.addProperty("loss", 0.25);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray rows = manager.arange(15f).reshape(5, 3);
            for (long step : new long[] {10, 20}) {
                NDArray ofStep = manager.create(new long[] {1, 2, 3, step});
                Map<String, NDArray> arrays = Map.of(WEIGHT, rows, "bias", ofStep);
                Checkpoints.write(folder, step, 2, List.of(weight, bias), arrays, values);
            }
        }
    }

    @Test
    public void testInspect() {
        TpRun.line("checkpoint inspect " + folder)
                .assertPrints(
                        0,
                        "step 20, mesh tensor 2",
                        "part-1-of-2.safetensors",
                        "axis 0: 2 + 3",
                        "bias",
                        "whole",
                        "0.25");
        TpRun.line("checkpoint inspect " + folder + " --step 10").assertPrints(0, "step 10");
        TpRun.line("checkpoint inspect " + folder.resolve("step-00000010"))
                .assertPrints(0, "step 10");
    }

    @Test
    public void testNamesAsLongAsTheyLike() throws IOException {
        Path run = root.resolve("long-names");
        String name = "encoder/layers/0/attention/".repeat(3) + "weight";
        Shape shape = new Shape(2);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray zeros = manager.zeros(shape, DataType.INT64);
            List<CutTensor> tensors =
                    Stream.of("bias", name)
                            .map(each -> CutTensor.whole(each, DataType.INT64, shape))
                            .toList();
            Map<String, NDArray> arrays = Map.of("bias", zeros, name, zeros);
            Checkpoints.write(run, 1, 1, tensors, arrays, new JsonObject());
        }
        String gap = " ".repeat(name.length() - "bias".length());
        TpRun.line("checkpoint inspect " + run)
                .assertPrints(
                        0,
                        "\n" + name + "  int64  (2)  whole",
                        "\nbias" + gap + "  int64  (2)  whole");
    }

    /** The --out of a training, which has its checkpoints in a folder of its own. */
    @Test
    public void testFolderOfATraining() throws IOException {
        Path training = Files.createDirectory(root.resolve("training"));
        Files.createSymbolicLink(training.resolve("checkpoints"), folder);
        TpRun.line("checkpoint inspect " + training).assertPrints(0, "step 20");
        TpRun.line("checkpoint verify " + training).assertPrints(0, "is whole");
    }

    /** Also of an older one, which is asked for when the newest is gone. */
    @Test
    public void testVerifyNamesTheDamagedBytes() throws IOException {
        TpRun.line("checkpoint verify " + folder)
                .assertPrints(
                        0,
                        "step-00000010 is whole",
                        "step-00000020 is whole",
                        "2 of 2 checkpoints are whole");
        Path older = folder.resolve("step-00000010/part-0-of-2.safetensors");
        byte[] good = Files.readAllBytes(older);
        Files.write(older, new byte[good.length]);
        try {
            TpRun.line("checkpoint verify " + folder)
                    .assertPrints(
                            2,
                            "step-00000010 is damaged: part-0-of-2.safetensors",
                            "step-00000020 is whole",
                            "1 of 2 checkpoints are whole");
            TpRun.line("checkpoint verify " + folder + " --step 20")
                    .assertPrints(0, "step-00000020 is whole");
        } finally {
            Files.write(older, good);
        }
        Path file = folder.resolve("step-00000020/part-1-of-2.safetensors");
        byte[] right = Files.readAllBytes(file);
        byte[] wrong = right.clone();
        wrong[right.length - 1] ^= 1;
        Files.write(file, wrong);
        try {
            // so small a file is one block, which holds the header too
            TpRun.line("checkpoint verify " + folder)
                    .assertPrints(
                            2,
                            "part-1-of-2.safetensors, bytes 0 to "
                                    + right.length
                                    + ": not as they were");
        } finally {
            Files.write(file, right);
        }
    }

    @Test
    public void testReshard() throws IOException {
        Path out = root.resolve("three");
        TpRun.line("checkpoint reshard " + folder + " --ranks 3 --out " + out)
                .assertPrints(0, "written in 2 parts, is in 3 parts");
        try (Checkpoint again = Checkpoint.open(out.resolve("step-00000020"));
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(again.verify(), List.of());
            Assert.assertEquals(again.read(WEIGHT, manager), manager.arange(15f).reshape(5, 3));
            Assert.assertEquals(
                    again.read("bias", manager).toLongArray(), new long[] {1, 2, 3, 20});
        }
    }

    @Test
    public void testReshardForOneRank() {
        TpRun.line("checkpoint reshard " + folder + " --ranks 1 --out " + root.resolve("one"))
                .assertPrints(0, "written in 2 parts, is in 1 part in");
    }

    @DataProvider
    public Object[][] badInput() {
        String run = folder.toString();
        String one = folder.resolve("step-00000010").toString();
        return new Object[][] {
            {List.of("inspect", root.resolve("no").toString()), "is not a folder of checkpoints"},
            {List.of("inspect", root.toString()), "has no complete checkpoint"},
            {List.of("inspect", run, "--step", "15"), "no checkpoint of step 15, but of [10, 20]"},
            {List.of("inspect", one, "--step", "15"), "is one checkpoint"},
            {List.of("verify", folder.resolve("step-7").toString()), "index.json is missing"},
            {List.of("reshard", run, "--ranks", "0", "--out", run + "0"), "--ranks 0: 1 to 1024"},
            {List.of("reshard", run, "--ranks", "3", "--out", run), "nothing is written over it"},
            {List.of("reshard", run, "--ranks", "3"), "--out"},
            {List.of(), "Choose what to do: inspect, verify, reshard"},
        };
    }

    @Test(dataProvider = "badInput")
    public void testOneClearErrorEach(List<String> arguments, String error) {
        TpRun run =
                TpRun.of(
                        Stream.concat(Stream.of("checkpoint"), arguments.stream())
                                .toArray(String[]::new));
        run.assertPrints(2, error);
        Assert.assertFalse(run.output().contains("\tat "), run.output());
    }

    /** A root has no name. */
    @Test
    public void testTheRootIsNoCheckpoint() {
        TpRun.of("checkpoint", "inspect", "/").assertPrints(2, "no complete checkpoint");
    }
}
