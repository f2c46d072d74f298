package io.djltp.exchange;

import static io.djltp.exchange.SmallModels.INPUT;
import static io.djltp.exchange.SmallModels.LLAMA;
import static io.djltp.exchange.SmallModels.assertSame;
import static io.djltp.exchange.SmallModels.initialized;
import static io.djltp.exchange.SmallModels.load;
import static io.djltp.exchange.SmallModels.model;
import static io.djltp.exchange.SmallModels.values;
import static io.djltp.exchange.SmallModels.weights;
import static io.djltp.exchange.SmallModels.write;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.Loss;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointListener;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import java.util.zip.CRC32;

/** What is written is what the ranks have, bit for bit, and what others can read. */
public class WeightExportTest extends TestFolder {

    private static final Path PYTORCH = SmallModels.file("model.safetensors.index.json");

    private static WeightExport.Builder export(NameMapping mapping) {
        return WeightExport.builder().setMapping(mapping);
    }

    @DataProvider
    public static Object[][] trainings() {
        return new Object[][] {{1, false}, {2, true}, {3, false}, {4, true}};
    }

    /**
     * Weights in training are written, read again, and are those that the model gets at the end.
     */
    @Test(dataProvider = "trainings", timeOut = 60_000)
    public void weightsInTrainingAreWritten(int ranks, boolean stacked) throws Exception {
        Engine.getInstance().setRandomSeed(3);
        try (Model model = model(SmallModels.llama(stacked))) {
            try (ParallelTrainer trainer =
                            new ParallelTrainer(
                                    model,
                                    Configs.of(Loss.l2Loss(), Configs.sgd(0.1f)),
                                    SmallModels.ranks(ranks));
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(SmallModels.INPUT);
                NDArray ids = manager.arange(10).toType(DataType.INT64, false);
                NDList input = new NDList(ids.reshape(SmallModels.INPUT));
                NDList labels = new NDList(manager.ones(new Shape(2, 5, SmallModels.VOCABULARY)));
                TrainingRun.step(trainer, input, labels);
                write(model.getBlock(), folder, LLAMA);
            }
            try (Model read = load(SmallModels.llama(stacked), folder, LLAMA, SmallModels.INPUT)) {
                assertSame(values(read.getBlock()), values(model.getBlock()));
            }
        }
    }

    /** The file that PyTorch has written, read and written again. */
    @Test
    public void theFileOfPyTorchComesBack() throws Exception {
        try (Model model = load(SmallModels.llama(true), PYTORCH, LLAMA, SmallModels.INPUT);
                WeightFiles original = WeightFiles.open(PYTORCH)) {
            export(LLAMA)
                    .optDataType(DataType.BFLOAT16)
                    .optFileBytes(9000)
                    .build()
                    .write(model.getBlock(), folder);
            try (WeightFiles written = WeightFiles.open(folder)) {
                int equal = 0;
                long total = 0;
                for (String name : original.names()) {
                    total += written.get(name).bytes();
                    boolean padded = name.contains("embed_tokens") || name.contains("lm_head");
                    Shape shape = padded ? new Shape(13, 24) : original.get(name).shape();
                    Assert.assertEquals(written.get(name).shape(), shape);
                    if (original.get(name).type().equals("BF16")) {
                        Assert.assertEquals(
                                bytes(written, name),
                                bytes(original, name).limit(2 * (int) shape.size()),
                                name);
                        equal++;
                    }
                }
                Assert.assertEquals(equal, 16);
                String text = Files.readString(folder.resolve("model.safetensors.index.json"));
                JsonObject index = JsonParser.parseString(text).getAsJsonObject();
                Assert.assertEquals(
                        index.getAsJsonObject("metadata").get("total_size").getAsLong(), total);
            }
            Assert.assertEquals(
                    files(),
                    List.of(
                            "model-00001-of-00002.safetensors",
                            "model-00002-of-00002.safetensors",
                            "model.safetensors.index.json"));
        }
    }

    private List<String> files() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    private static ByteBuffer bytes(WeightFiles files, String name) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate((int) files.get(name).bytes());
        files.fileOf(name).read(files.get(name), 0, bytes);
        return bytes.flip();
    }

    /** DJL has a reader of its own. */
    @Test
    public void djlReadsTheFile() throws Exception {
        try (Model model = load(SmallModels.llama(false), PYTORCH, LLAMA, SmallModels.INPUT);
                NDManager manager = NDManager.newBaseManager();
                InputStream file = Files.newInputStream(write(model.getBlock(), folder, LLAMA))) {
            Map<String, Parameter> tree = NameMapping.paths(model.getBlock());
            NDList list = NDList.decode(manager, file);
            Assert.assertEquals(list.size(), tree.size() + 2); // gate and up are one
            NDArray gate = list.get("model.layers.1.mlp.gate_proj.weight");
            NDArray up = list.get("model.layers.1.mlp.up_proj.weight");
            NDArray both = tree.get("ParallelTransformer.layer1.mlp.gateUp.weight").getArray();
            Assert.assertEquals(gate.concat(up), both);
        }
    }

    private static final String SCRIPT =
            """
            import glob, sys, zlib
            from safetensors import safe_open
            for file in glob.glob(sys.argv[1] + "/*.safetensors"):
                with safe_open(file, "pt") as tensors:
                    assert tensors.metadata() == {"format": "pt"}
                    for name in tensors.keys():
                        tensor = tensors.get_tensor(name)
                        numbers = tensor.double().numpy().astype("<f8").tobytes()
                        print(name, list(tensor.shape), zlib.crc32(numbers))
            """;

    /**
     * What is written here is read by the safetensors of Hugging Face, with the same shapes and
     * bytes. Needs a Python that has it, {@code -Ddjltp.python=PYTHON}, or {@code python3} on the
     * path.
     */
    @Test(timeOut = 120_000)
    public void huggingFaceReadsTheFiles() throws Exception {
        String python = System.getProperty("djltp.python", "python3");
        if (run(python, "-c", "import torch, safetensors") == null) {
            throw new SkipException(
                    "There is no safetensors with PyTorch for Python: pip install torch"
                            + " safetensors");
        }
        for (DataType type : new DataType[] {DataType.FLOAT32, DataType.BFLOAT16}) {
            Path out = folder.resolve(type.toString());
            try (Model model = initialized(SmallModels.llama(true), SmallModels.INPUT)) {
                export(LLAMA)
                        .optDataType(type)
                        .optFileBytes(9000)
                        .build()
                        .write(model.getBlock(), out);
            }
            Map<String, String> expected = new TreeMap<>();
            try (WeightFiles files = WeightFiles.open(out);
                    NDManager manager = NDManager.newBaseManager()) {
                for (String name : files.names()) {
                    NDArray numbers = files.fileOf(name).read(name, manager);
                    CRC32 crc = new CRC32();
                    crc.update(numbers.toType(DataType.FLOAT64, true).toByteBuffer());
                    String shape = Arrays.toString(numbers.getShape().getShape());
                    expected.put(name, shape + " " + crc.getValue());
                }
            }
            Map<String, String> read = new TreeMap<>();
            String output = run(python, "-c", SCRIPT, out.toString());
            Assert.assertNotNull(output, "the script fails");
            for (String line : output.lines().toList()) {
                String[] words = line.split(" ", 2);
                read.put(words[0], words[1]);
            }
            Assert.assertEquals(read, expected);
        }
    }

    /** Returns what a program prints, or null if it is not there or fails. */
    private static String run(String... command) throws InterruptedException {
        try {
            Process process =
                    new ProcessBuilder(command)
                            .redirectError(ProcessBuilder.Redirect.DISCARD)
                            .start();
            byte[] output = process.getInputStream().readAllBytes();
            boolean ended = process.waitFor(60, TimeUnit.SECONDS);
            process.destroyForcibly();
            return ended && process.exitValue() == 0
                    ? new String(output, StandardCharsets.UTF_8)
                    : null;
        } catch (IOException e) {
            return null;
        }
    }

    /** Read by its names or as a Llama, Phi-3 is written with its stacked tensors. */
    @Test
    public void phi3IsGivenBack() throws Exception {
        NameMapping phi = NameMapping.phi3(6, 3);
        for (boolean stacked : new boolean[] {false, true}) {
            Path first = folder.resolve("first" + stacked);
            Path again = folder.resolve("again" + stacked);
            try (Model model = load(SmallModels.llama(stacked), PYTORCH, LLAMA, INPUT)) {
                write(model.getBlock(), first, phi);
            }
            try (Model model = load(SmallModels.llama(!stacked), first, LLAMA, INPUT)) {
                write(model.getBlock(), again, phi);
            }
            Path file = first.resolve("model.safetensors");
            Assert.assertEquals(Files.mismatch(file, again.resolve("model.safetensors")), -1);
            try (WeightFiles files = WeightFiles.open(first)) {
                String layer = "model.layers.1.";
                Assert.assertEquals(
                        files.get(layer + "self_attn.qkv_proj.weight").shape(), new Shape(48, 24));
                Assert.assertEquals(
                        files.get(layer + "mlp.gate_up_proj.weight").shape(), new Shape(52, 24));
                Assert.assertNull(files.get(layer + "self_attn.q_proj.weight"));
                String norm = layer + "input_layernorm.weight";
                Assert.assertEquals(files.fileOf(norm).getMetadata(), Map.of("format", "pt"));
            }
        }
    }

    /** One weight of three layers in the file, as of Phi, and three of one; and transposed. */
    @Test
    public void weightsAreStackedAndTurned() throws Exception {
        NameMapping phi =
                LLAMA.with(
                        "{path}.layer{n}.attention.query.weight + {path}.layer{n}.attention.key.weight"
                                + " + {path}.layer{n}.attention.value.weight = l{n}.qkv\n"
                                + "{path}.layer{n}.attention.queryKeyValue.weight = l{n}.qkv\n"
                                + "{path}.layer{n}.mlp.down.weight = l{n}.down : transposed\n");
        for (boolean stacked : new boolean[] {false, true}) {
            Block other = SmallModels.llama(!stacked);
            try (Model model = load(other, PYTORCH, LLAMA, SmallModels.INPUT)) {
                write(model.getBlock(), folder, phi);
            }
            for (int ranks : new int[] {1, 3}) {
                try (Model model = model(SmallModels.llama(stacked));
                        PretrainedWeights weights = weights(folder, phi)) {
                    weights.bind(model, SmallModels.INPUT);
                    float[] y = SmallModels.predict(model, ranks);
                    ArrayAssert.assertClose(y, SmallModels.reference("llama"), 1e-5, "phi");
                }
            }
            try (WeightFiles files = WeightFiles.open(folder)) {
                Assert.assertEquals(files.get("l1.qkv").shape(), new Shape(48, 24));
                Assert.assertEquals(files.get("l0.down").shape(), new Shape(26, 24));
                Assert.assertNull(files.get("model.layers.0.self_attn.q_proj.weight"));
            }
        }
    }

    @DataProvider
    public static Object[][] checkpoints() {
        return new Object[][] {
            {true, LLAMA, "model.embed_tokens.weight"},
            {true, NameMapping.own(), "VocabParallelEmbedding.embedding"},
            {false, LLAMA, "lm_head.weight"},
            {false, NameMapping.own(), "ColumnParallelLinear.weight"}
        };
    }

    /** What is written of a checkpoint is what is written of the model that it was taken of. */
    @Test(dataProvider = "checkpoints", timeOut = 60_000)
    public void aCheckpointIsWrittenAsItsModel(boolean tied, NameMapping mapping, String name)
            throws IOException {
        WeightExport export = export(mapping).build();
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder.resolve("run")).build();
        try (Model model = model(SmallModels.llama(false, tied));
                ParallelTrainer trainer =
                        new ParallelTrainer(
                                model,
                                Configs.of(Loss.l2Loss()).addTrainingListeners(checkpoints),
                                SmallModels.ranks(2))) {
            trainer.initialize(SmallModels.INPUT);
            checkpoints.save();
            Assert.assertTrue(checkpoints.await());
            Path ofModel = export.write(model.getBlock(), folder.resolve("model"));
            try (Checkpoint checkpoint = Checkpoint.open(folder.resolve("run/step-00000000"))) {
                Path ofCheckpoint = export.write(checkpoint, folder.resolve("checkpoint"));
                Assert.assertEquals(Files.mismatch(ofCheckpoint, ofModel), -1);
            }
            try (WeightFiles files = WeightFiles.open(folder.resolve("checkpoint"))) {
                Assert.assertNotNull(files.get(name), name);
            }
        }
    }

    @DataProvider
    public static Object[][] mistakes() {
        NameMapping own = NameMapping.own();
        return new Object[][] {
            {
                run(() -> export(own).optDataType(DataType.INT32)),
                "Weights are written as floating point numbers, not int32"
            },
            {
                run(() -> export(own).optDataType(null)),
                "Weights are written as floating point numbers, not null"
            },
            {
                run(() -> export(own).optFileBytes(0)),
                "The bytes of a file must be 1 or more, not 0"
            },
            {
                run(() -> writeLinear("* = * : transposed")),
                "The weights cannot be written:\n  [bias] (2) cannot be written by the rule"
                        + " '* = * : transposed': what is transposed has two axes"
            },
            {
                run(() -> writeLinear("bias = b\nweight = a + c * 2")),
                "The weights cannot be written:\n  [weight] (2, 3) cannot be written by the rule"
                        + " 'weight = a + c * 2': 2 rows are not a multiple of 3"
            },
            {
                run(() -> writeLinear("weight = a")),
                "The weights cannot be written:\n  parameter bias has no name in the mapping"
            },
        };
    }

    private static Assert.ThrowingRunnable run(Assert.ThrowingRunnable call) {
        return call;
    }

    private static void writeLinear(String table) throws IOException {
        Path none = Path.of("no such folder");
        try (Model model = initialized(Blocks.linear(2), new Shape(1, 3))) {
            export(NameMapping.parse(table)).build().write(model.getBlock(), none);
        } finally {
            Assert.assertFalse(Files.exists(none));
        }
    }

    @Test(dataProvider = "mistakes")
    public void aMistakeIsNamed(Assert.ThrowingRunnable call, String message) {
        Assert.assertEquals(
                Assert.expectThrows(IllegalArgumentException.class, call).getMessage(), message);
    }

    /** One file, or files with an index: any of the name counts. */
    @Test
    public void weightsThatAreThereStay() throws IOException {
        try (Model model = filled(1)) {
            Block block = model.getBlock();
            Path file = export(NameMapping.own()).build().write(block, folder);
            byte[] before = Files.readAllBytes(file);
            fill(model, 2);
            for (long bytes : new long[] {1, 1000}) {
                WeightExport again = export(NameMapping.own()).optFileBytes(bytes).build();
                Refusals.expect(
                        FileAlreadyExistsException.class,
                        () -> again.write(block, folder),
                        "model.safetensors: there are",
                        "optOverwrite(true)");
            }
            export(NameMapping.own()).optName("other").build().write(block, folder);
            Assert.assertEquals(Files.readAllBytes(file), before);
            export(NameMapping.own()).optOverwrite(true).build().write(block, folder);
            Assert.assertNotEquals(Files.readAllBytes(file), before);
        }
    }

    private static Model filled(float value) {
        Model model = initialized(Blocks.linear(3), new Shape(2, 4));
        fill(model, value);
        return model;
    }

    private static void fill(Model model, float value) {
        NDArray weight = model.getBlock().getDirectParameters().get("weight").getArray();
        try (NDManager scope = model.getNDManager().newSubManager()) {
            scope.full(weight.getShape(), value).copyTo(weight);
        }
    }

    @DataProvider
    public static Object[][] limits() {
        float end = 0x1.ffp127f; // half way to infinity, and rounded there
        return new Object[][] {
            // 65,519 is rounded to 65,504, and 65,520 to infinity. Infinity stays what it is
            {DataType.FLOAT16, 65_519, null},
            {DataType.FLOAT16, Float.POSITIVE_INFINITY, null},
            {DataType.FLOAT16, -65_520, "float16 cannot hold, such as -65520"},
            {DataType.BFLOAT16, -65_520, null},
            // the largest number of bfloat16 is 3.3895e38; that of float32 is 3.4028e38
            {DataType.BFLOAT16, Math.nextDown(end), null},
            {DataType.BFLOAT16, Float.NEGATIVE_INFINITY, null},
            {DataType.BFLOAT16, end, "ends at 3.3895e38. Nothing is written; write float32"},
            {DataType.BFLOAT16, -3.4e38f, "that bfloat16 cannot hold, such as -3."},
            {DataType.BFLOAT16, Float.MAX_VALUE, "that bfloat16 cannot hold, such as 3."},
        };
    }

    /** What the system says of a full disk names no file; and nothing of a failed export stays. */
    @Test(dataProvider = "limits")
    public void whatATypeCannotHoldIsNamed(DataType type, float value, String what)
            throws IOException {
        Path none = folder.resolve("none");
        try (Model model = filled(value)) {
            WeightExport half = export(NameMapping.own()).optDataType(type).build();
            if (what == null) {
                half.write(model.getBlock(), none);
                return;
            }
            Refusals.expect(
                    IOException.class,
                    () -> half.write(model.getBlock(), none),
                    "Cannot write to " + none + ": tensor weight has numbers",
                    what);
            Assert.assertFalse(Files.exists(none));
            fill(model, 1);
            byte[] before = Files.readAllBytes(half.write(model.getBlock(), none));
            fill(model, value);
            WeightExport again =
                    export(NameMapping.own()).optDataType(type).optOverwrite(true).build();
            Assert.assertThrows(IOException.class, () -> again.write(model.getBlock(), none));
            Assert.assertEquals(Files.readAllBytes(none.resolve("model.safetensors")), before);
        }
    }
}
