package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;

/** What does not fit is listed as a whole, and nothing is changed. */
public class BadWeightsTest {

    private static final Shape INPUT = new Shape(2, 3);

    private static Block network() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(4).build())
                .add(Linear.builder().setUnits(2).build());
    }

    private static Path file(Map<String, Shape> shapes, DataType type) throws IOException {
        Path path = Files.createTempFile("weights", ".safetensors");
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        shapes.forEach((name, shape) -> builder.addTensor(name, type, shape));
        try (SafetensorsWriter writer =
                builder.build(FileChannel.open(path, StandardOpenOption.WRITE))) {
            for (Shape shape : shapes.values()) {
                writer.write(ByteBuffer.allocate((int) shape.size() * type.getNumOfBytes()));
            }
            writer.finish();
        }
        return path;
    }

    /** A padded table may be shorter than the parameter: it is said which rows are 0. */
    @Test
    public void aShortPaddedTableIsAWarning() throws Exception {
        Path path = file(Map.of("table", new Shape(3, 3)), DataType.FLOAT32);
        PrintStream standard = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.parse("weight = table : padded"))
                                .build()) {
            model.setBlock(Linear.builder().setUnits(5).optBias(false).build());
            System.setErr(new PrintStream(said, true, StandardCharsets.UTF_8));
            weights.load(model, INPUT);
        } finally {
            System.setErr(standard);
        }
        String warning = said.toString(StandardCharsets.UTF_8);
        Assert.assertTrue(warning.contains("Tensor table of"), warning);
        Assert.assertTrue(
                warning.contains("has 3 rows, and parameter weight (5, 3): the last 2 are 0"),
                warning);
    }

    @Test
    public void aModelWithoutABlockIsRefused() throws Exception {
        Path path = file(Map.of("table", new Shape(3, 3)), DataType.FLOAT32);
        try (Model model = Model.newInstance("blank");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.parse("weight = table"))
                                .build()) {
            IllegalStateException e =
                    Assert.expectThrows(
                            IllegalStateException.class, () -> weights.load(model, INPUT));
            Assert.assertEquals(
                    e.getMessage(),
                    "The model blank has no block to take the weights: call model.setBlock(...)"
                            + " before");
        }
    }

    @Test
    public void everythingThatDoesNotFitIsListed() throws Exception {
        Path path =
                file(
                        Map.of(
                                "Linear0.weight", new Shape(4, 5),
                                "Linear0.bias", new Shape(4),
                                "Linear1.weight", new Shape(2, 4),
                                "other.weight", new Shape(1)),
                        DataType.FLOAT32);
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.torch())
                                .build()) {
            model.setBlock(network());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
            Map<String, float[]> before = WeightExportTest.values(model.getBlock());
            MalformedModelException e =
                    Assert.expectThrows(
                            MalformedModelException.class, () -> weights.load(model, INPUT));
            Assert.assertEquals(
                    e.getMessage(),
                    path
                            + " does not fit the model, which is left as it was:\n"
                            + "  parameter Linear0.weight (4, 3) is not Linear0.weight (4, 5)\n"
                            + "  parameter Linear1.bias (2) needs Linear1.bias, which is missing (of tied"
                            + " weights, which a file has once, a line of the mapping names the tensor)\n"
                            + "  tensor other.weight (1) is no parameter's");
            WeightExportTest.values(model.getBlock())
                    .forEach(
                            (name, array) ->
                                    ArrayAssert.assertBitEqual(array, before.get(name), name));
        }
        Files.delete(path);
    }

    /** A head of one's own on weights of others. */
    @Test
    public void partsMayBeLeftOut() throws Exception {
        Path path =
                file(
                        Map.of(
                                "Linear0.weight", new Shape(4, 3),
                                "Linear0.bias", new Shape(4),
                                "cls.weight", new Shape(9)),
                        DataType.FLOAT32);
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.torch())
                                .optSkipParameters("Linear1.{path}")
                                .optSkipTensors("cls.{path}")
                                .build()) {
            model.setBlock(network());
            weights.load(model, INPUT);
            Map<String, float[]> values = WeightExportTest.values(model.getBlock());
            Assert.assertEquals(values.get("Linear0.weight"), new float[12]);
            Assert.assertNotEquals(values.get("Linear1.weight"), new float[8]);
        }
        Files.delete(path);
    }

    @Test
    public void integersAreNoWeights() throws Exception {
        Path path = file(Map.of("w", new Shape(4, 3)), DataType.INT32);
        expect(
                path,
                "w = w",
                "tensor w has the data type I32, and a parameter that is trained is of floating"
                        + " point numbers: freeze the parameter, or store F32, F16, BF16 or F64");
        Files.delete(path);
    }

    @Test
    public void sharesMustFit() throws Exception {
        Path path = file(Map.of("a", new Shape(1, 3), "b", new Shape(3, 3)), DataType.FLOAT32);
        expect(path, "w = a + b", "parameter w (4, 3) is not a (1, 3) + b (3, 3)");
        expect(path, "w = a * 3 + b", "parameter w (4, 3) is not a (1, 3) + b (3, 3)");
        Files.delete(path);
    }

    private static void expect(Path path, String mapping, String problem) throws Exception {
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.parse(mapping.replace("w =", "weight =")))
                                .build()) {
            model.setBlock(Linear.builder().setUnits(4).optBias(false).build());
            MalformedModelException e =
                    Assert.expectThrows(
                            MalformedModelException.class, () -> weights.bind(model, INPUT));
            String expected = problem.replace("parameter w", "parameter weight");
            Assert.assertEquals(
                    e.getMessage(),
                    path + " does not fit the model, which is left as it was:\n  " + expected);
            Assert.assertFalse(model.getBlock().isInitialized());
        }
    }

    /** A model that is used after its files were closed does not get other weights. */
    @Test
    public void weightsThatWereNotReadAreNotDrawn() throws Exception {
        Path path = file(Map.of("weight", new Shape(4, 3)), DataType.FLOAT64);
        try (Model model = Model.newInstance("m")) {
            model.setBlock(Linear.builder().setUnits(4).optBias(false).build());
            try (PretrainedWeights weights =
                    PretrainedWeights.builder()
                            .setPath(path)
                            .setMapping(NameMapping.own())
                            .build()) {
                weights.bind(model, INPUT);
            }
            String message =
                    Assert.expectThrows(
                                    IllegalStateException.class,
                                    () ->
                                            model.getBlock()
                                                    .initialize(
                                                            model.getNDManager(),
                                                            DataType.FLOAT32,
                                                            INPUT))
                            .getMessage();
            Assert.assertTrue(message.contains("are closed: close them after"), message);
        }
        Files.delete(path);
    }

    @Test
    public void closedWeightsAreNotAssigned() throws Exception {
        Path path = file(Map.of("weight", new Shape(4, 3)), DataType.FLOAT32);
        try (Model model = Model.newInstance("m")) {
            model.setBlock(Linear.builder().setUnits(4).optBias(false).build());
            PretrainedWeights weights =
                    PretrainedWeights.builder().setPath(path).setMapping(NameMapping.own()).build();
            weights.close();
            Assert.expectThrows(IllegalStateException.class, () -> weights.bind(model, INPUT));
        }
        Files.delete(path);
    }

    /** What is infinite in the file is so in the model, and nothing else. */
    @Test
    public void numbersBeyondFloat32AreNamed() throws Exception {
        double most = Float.MAX_VALUE;
        try (Model model = read(new double[] {most, 0.1, Double.NEGATIVE_INFINITY})) {
            float[] values = model.getBlock().getParameters().valueAt(0).getArray().toFloatArray();
            Assert.assertEquals(
                    values, new float[] {Float.MAX_VALUE, 0.1f, Float.NEGATIVE_INFINITY});
        }
        String message =
                Assert.expectThrows(
                                UncheckedIOException.class,
                                () -> read(new double[] {1, -1e300, Double.POSITIVE_INFINITY}))
                        .getMessage();
        Assert.assertTrue(
                message.contains("tensor weight has numbers that float32 cannot hold: -1.0E300"),
                message);
    }

    /** Returns a model with the weight (1, 3) of a file of float64. */
    private static Model read(double[] values) throws Exception {
        Path path = Files.createTempFile("weights", ".safetensors");
        try (SafetensorsWriter writer =
                SafetensorsWriter.builder()
                        .addTensor("weight", DataType.FLOAT64, new Shape(1, values.length))
                        .build(FileChannel.open(path, StandardOpenOption.WRITE))) {
            ByteBuffer bytes =
                    ByteBuffer.allocate(8 * values.length).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asDoubleBuffer().put(values);
            writer.write(bytes);
            writer.finish();
        }
        Model model = Model.newInstance("m");
        model.setBlock(Linear.builder().setUnits(1).optBias(false).build());
        try (PretrainedWeights weights =
                PretrainedWeights.builder().setPath(path).setMapping(NameMapping.own()).build()) {
            weights.load(model, new Shape(1, values.length));
            return model;
        } catch (Exception e) {
            model.close();
            throw e;
        } finally {
            Files.delete(path);
        }
    }

    @Test
    public void partsOfAnIndexMustBeThere() throws Exception {
        Path folder = Files.createTempDirectory("weights");
        Files.writeString(
                folder.resolve("model.safetensors.index.json"),
                "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}");
        IOException missing =
                Assert.expectThrows(IOException.class, () -> WeightFiles.open(folder));
        Assert.assertTrue(
                missing.getMessage()
                        .endsWith("names what is not there: [model-00001-of-00002.safetensors]"),
                missing.getMessage());
    }

    @Test
    public void twoTensorsOfOneParameterMustBeEqual() throws Exception {
        Path path = Files.createTempFile("weights", ".safetensors");
        try (SafetensorsWriter writer =
                SafetensorsWriter.builder()
                        .addTensor("a", DataType.FLOAT32, new Shape(1))
                        .addTensor("b", DataType.FLOAT32, new Shape(1))
                        .build(FileChannel.open(path, StandardOpenOption.WRITE))) {
            writer.write(ByteBuffer.wrap(new byte[] {0, 0, 0, 0, 0, 0, 1, 0}));
            writer.finish();
        }
        try (WeightFiles files = WeightFiles.open(path)) {
            Assert.assertTrue(files.areEqual("a", "a"));
            Assert.assertFalse(files.areEqual("a", "b"));
        }
        Files.delete(path);
    }

    /** What RotaryEmbedding does not compute must not load without a word. */
    @Test
    public void scaledRotaryPositionsAreNamed() throws Exception {
        Path folder = Files.createTempDirectory("weights");
        Path path = file(Map.of("Linear.weight", new Shape(4, 3)), DataType.FLOAT32);
        Files.move(path, folder.resolve("model.safetensors"));
        Path config = folder.resolve("config.json");
        String llama3 = "{\"rope_type\": \"llama3\", \"factor\": 8.0}";
        for (String refused :
                new String[] {
                    "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}",
                    "\"rope_scaling\": " + llama3,
                    "\"rope_parameters\": " + llama3
                }) {
            Files.writeString(config, "{" + refused + "}");
            MalformedModelException e =
                    Assert.expectThrows(MalformedModelException.class, () -> load(folder));
            Assert.assertTrue(e.getMessage().contains("config.json has rope_"), e.getMessage());
            Assert.assertTrue(e.getMessage().contains("\"factor\":"), e.getMessage());
        }
        for (String read :
                new String[] {
                    "{\"rope_scaling\": null}",
                    "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}",
                    "[]",
                    "no JSON {"
                }) {
            Files.writeString(config, read);
            load(folder);
        }
        Files.writeString(config, "{\"sliding_window\": 4096, \"use_sliding_window\": false}");
        Assert.assertEquals(warnings(() -> load(folder)), "");
        Files.writeString(config, "{\"sliding_window\": 4096}");
        String said = warnings(() -> load(folder));
        Assert.assertTrue(said.contains("sliding_window 4096"), said);
    }

    private static void load(Path folder) throws Exception {
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(folder)
                                .setMapping(NameMapping.own())
                                .build()) {
            model.setBlock(
                    new SequentialBlock().add(Linear.builder().setUnits(4).optBias(false).build()));
            weights.load(model, INPUT);
        }
    }

    private static String warnings(Assert.ThrowingRunnable part) throws Exception {
        PrintStream standard = System.err;
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        System.setErr(new PrintStream(said, true, StandardCharsets.UTF_8));
        try {
            part.run();
        } catch (Throwable e) {
            throw new AssertionError(e);
        } finally {
            System.setErr(standard);
        }
        return said.toString(StandardCharsets.UTF_8);
    }

    /** A tied head in the file, and two parameters here: they would differ after the first step. */
    @Test
    public void aTiedTensorOfTwoParametersIsAWarning() throws Exception {
        for (boolean tied : new boolean[] {true, false}) {
            Path folder = Files.createTempDirectory("tied");
            try (Model written = Model.newInstance("tied");
                    Model read = Model.newInstance("read")) {
                written.setBlock(SmallModels.llama(false, true));
                written.getBlock()
                        .initialize(written.getNDManager(), DataType.FLOAT32, SmallModels.INPUT);
                WeightExport.builder()
                        .setMapping(SmallModels.LLAMA)
                        .build()
                        .write(written.getBlock(), folder);
                read.setBlock(SmallModels.llama(false, tied));
                String said =
                        warnings(
                                () -> {
                                    try (PretrainedWeights weights =
                                            PretrainedWeights.builder()
                                                    .setPath(folder)
                                                    .setMapping(SmallModels.LLAMA)
                                                    .build()) {
                                        weights.load(read, SmallModels.INPUT);
                                    }
                                });
                Assert.assertEquals(said.contains("optTiedWeight(embedding)"), !tied, said);
            }
        }
    }
}
