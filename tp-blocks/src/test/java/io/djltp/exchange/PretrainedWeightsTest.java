package io.djltp.exchange;

import static io.djltp.exchange.SmallModels.LLAMA;
import static io.djltp.exchange.SmallModels.assertSame;
import static io.djltp.exchange.SmallModels.initialized;
import static io.djltp.exchange.SmallModels.load;
import static io.djltp.exchange.SmallModels.model;
import static io.djltp.exchange.SmallModels.ranks;
import static io.djltp.exchange.SmallModels.values;
import static io.djltp.exchange.SmallModels.weights;
import static io.djltp.exchange.SmallModels.write;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.logged;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Prelu;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;

import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelPredictor;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Weights of files, on any number of ranks: the right ones, no byte more, or one error. */
public class PretrainedWeightsTest extends TestFolder {

    private static final Shape INPUT = new Shape(2, 3);
    private static final String INDEX = "model.safetensors.index.json";

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {"bert", SmallModels.bert(false), "bert.safetensors", NameMapping.bert()},
            {"bert", SmallModels.bert(true), "bert.safetensors", NameMapping.bert()},
            {"llama", SmallModels.llama(false), INDEX, LLAMA},
            {"llama", SmallModels.llama(true), INDEX, LLAMA},
        };
    }

    /** Files that PyTorch and Hugging Face's safetensors have written. */
    @Test(dataProvider = "models", timeOut = 60_000)
    public void outputsAreThoseOfPyTorch(String name, Block block, String file, NameMapping mapping)
            throws Exception {
        float[] expected = SmallModels.reference(name);
        for (int ranks = 0; ranks <= 4; ranks++) {
            try (Model model = model(block);
                    PretrainedWeights weights = weights(SmallModels.file(file), mapping)) {
                Shape[] inputs = SmallModels.inputs(block);
                if (ranks == 0) {
                    weights.load(model, inputs);
                } else {
                    weights.bind(model, inputs);
                    Assert.assertEquals(weights.getBytesRead(), 0, "before they are needed");
                }
                float[] actual = SmallModels.predict(model, ranks);
                ArrayAssert.assertClose(actual, expected, 1e-5, name + " on " + ranks + " ranks");
                Assert.assertEquals(weights.getBytesRead(), bytes(file, ranks), "bytes read");
                block.getParameters().values().forEach(Parameter::close);
            }
        }
    }

    /**
     * All ranks together read each byte once, but for the key/value heads that two of them use:
     * three heads of [4, 24] of keys and as many of values in bfloat16.
     */
    private static long bytes(String file, int ranks) throws Exception {
        try (WeightFiles files = WeightFiles.open(SmallModels.file(file))) {
            long all = 0;
            for (String name : files.names()) {
                all += name.endsWith("position_ids") ? 0 : files.get(name).bytes();
            }
            if (!file.equals(INDEX)) {
                return all;
            }
            all -= 2L * 3 * 24 * Short.BYTES; // the spare rows of embedding and head
            // 6 query heads on 2 ranks: 3 and 3, which both use the second of the key/value heads;
            // on 4 ranks: 2, 2, 1 and 1, of which the last two use the third
            int shared = ranks == 2 || ranks == 4 ? 1 : 0;
            return all + 2L * 2 * shared * 4 * 24 * Short.BYTES;
        }
    }

    @Test
    public void aRankReadsTheBytesOfItsShard() throws Exception {
        try (NDManager manager = NDManager.newBaseManager();
                WeightFiles files = WeightFiles.open(SmallModels.file(INDEX))) {
            Shape shape = new Shape(24, 26);
            SlicedInitializer source =
                    SmallModels.source(files, "w = model.layers.0.mlp.down_proj.weight", shape);
            NDArray whole = source.initialize(manager, shape, DataType.FLOAT64);
            for (ShardingStrategy strategy :
                    List.of(ShardingStrategy.rowwise(), ShardingStrategy.columnwise())) {
                for (int rank = 0; rank < 4; rank++) {
                    Shape local = strategy.shardShape(shape, rank, 4);
                    NDArray expected = manager.zeros(local, DataType.FLOAT64);
                    strategy.scatterRows(whole, 0, shape, expected, rank, 4);
                    long before = files.getBytesRead();
                    NDArray shard =
                            source.initialize(
                                    manager,
                                    shape,
                                    DataType.FLOAT64,
                                    strategy.axis(shape),
                                    strategy.cut(shape, 4).getRanges(rank));
                    Assert.assertEquals(
                            files.getBytesRead() - before, local.size() * Double.BYTES, "bytes");
                    Assert.assertEquals(shard, expected);
                }
            }
        }
    }

    /** Layers of DJL, with PyTorch's names, become layers of ranks, and the other way round. */
    @Test(timeOut = 60_000)
    public void layersChangeTheirKind() throws Exception {
        Shape input = new Shape(3, 7);
        NameMapping cut =
                NameMapping.torch()
                        .with(
                                "ColumnParallelLinear.{path} = Linear0.{path}\n"
                                        + "RowParallelLinear.{path} = Linear1.{path}\n");
        try (Model plain = initialized(network(linear(9), linear(5)), input);
                Model parallel = model(network(column(9), row(5)));
                NDManager manager = NDManager.newBaseManager()) {
            write(plain.getBlock(), folder, NameMapping.torch());
            try (WeightFiles files = WeightFiles.open(folder)) {
                TreeSet<String> names = new TreeSet<>();
                files.names().forEach(names::add);
                Assert.assertEquals(
                        names.toString(),
                        "[BatchNorm.bias, BatchNorm.running_mean, BatchNorm.running_var,"
                                + " BatchNorm.weight, LayerNorm.bias, LayerNorm.weight,"
                                + " Linear0.bias, Linear0.weight, Linear1.bias, Linear1.weight]");
            }
            NDList x = new NDList(manager.randomNormal(input));
            NDArray expected = plain.newPredictor(new NoopTranslator(null)).predict(x).head();
            try (PretrainedWeights weights = weights(folder, cut)) {
                weights.bind(parallel, input);
                try (ParallelPredictor<NDList, NDList> predictor =
                        new ParallelPredictor<>(parallel, new NoopTranslator(null), ranks(3))) {
                    ArrayAssert.assertClose(predictor.predict(x).head(), expected, 1e-5, "ranks");
                    write(parallel.getBlock(), folder, cut); // while the ranks have the weights
                }
            }
            try (Model back =
                    load(network(linear(9), linear(5)), folder, NameMapping.torch(), input)) {
                assertSame(values(back.getBlock()), values(plain.getBlock()));
            }
        }
    }

    private static Block network(Block first, Block second) {
        return sequence(
                first, second, LayerNorm.builder().axis(1).build(), BatchNorm.builder().build());
    }

    /** DJL's Prelu has one number, without an axis. */
    @Test(timeOut = 60_000)
    public void aNumberWithoutAxesIsATensor() throws Exception {
        Block prelu = new Prelu();
        prelu.setInitializer(Initializer.ONES, parameter -> true);
        try (Model model = initialized(sequence(linear(5), prelu), INPUT)) {
            NDArray alpha = model.getBlock().getParameters().valueAt(2).getArray();
            Assert.assertEquals(alpha.getShape().dimension(), 0);
            alpha.set(new float[] {0.3f});
            write(model.getBlock(), folder, NameMapping.own());
            Block other = sequence(linear(5), new Prelu());
            try (Model read = load(other, folder, NameMapping.own(), INPUT)) {
                assertSame(values(read.getBlock()), values(model.getBlock()));
            }
        }
    }

    /** An initializer of the configuration is for what no file has. */
    @Test(timeOut = 60_000)
    public void anInitializerDoesNotReplaceAFile() throws Exception {
        Map<String, float[]> written = writeTwoLayers();
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Model model = model(sequence(column(5), row(7)));
                    PretrainedWeights weights =
                            weights(folder, NameMapping.own(), "RowParallelLinear.{path}")) {
                weights.bind(model, INPUT);
                try (ParallelTrainer trainer =
                        new ParallelTrainer(
                                model,
                                Configs.of(Loss.l2Loss())
                                        .optInitializer(new ConstantInitializer(9), each -> true),
                                ranks(ranks))) {
                    trainer.initialize(INPUT);
                }
                Map<String, float[]> values = values(model.getBlock());
                for (String name : List.of("weight", "bias")) {
                    String read = "ColumnParallelLinear." + name;
                    Assert.assertEquals(values.get(read), written.get(read), read);
                    assertAll(values.get("RowParallelLinear." + name), 9);
                }
            }
        }
    }

    /** Also where the files have a tensor of the same name, of whatever shape. */
    @Test
    public void whatIsKeptIsNotRead() throws Exception {
        Map<String, float[]> written = writeTwoLayers();
        for (int outputs : new int[] {4, 7}) {
            Block block = sequence(column(5), row(outputs));
            block.setInitializer(new ConstantInitializer(2), Parameter.Type.WEIGHT);
            try (Model model = initialized(block, INPUT);
                    PretrainedWeights weights =
                            weights(folder, NameMapping.own(), "RowParallelLinear.{path}")) {
                weights.load(model, INPUT);
                Map<String, float[]> values = values(block);
                String read = "ColumnParallelLinear.weight";
                Assert.assertEquals(values.get(read), written.get(read));
                Assert.assertEquals(values.get("RowParallelLinear.weight").length, outputs * 5);
                assertAll(values.get("RowParallelLinear.weight"), 2);
            }
        }
    }

    private Map<String, float[]> writeTwoLayers() throws IOException {
        try (Model model = initialized(sequence(column(5), row(4)), INPUT)) {
            write(model.getBlock(), folder, NameMapping.own());
            return values(model.getBlock());
        }
    }

    private static void assertAll(float[] values, float expected) {
        for (float value : values) {
            Assert.assertEquals(value, expected);
        }
    }

    /** A head of one's own on weights of others. */
    @Test
    public void partsMayBeLeftOut() throws Exception {
        Path path = file("Linear0.weight(4,3) Linear0.bias(4) cls.weight(9)", DataType.FLOAT32);
        try (Model model = model(sequence(linear(4), linear(2)));
                PretrainedWeights weights =
                        PretrainedWeights.builder()
                                .setPath(path)
                                .setMapping(NameMapping.torch())
                                .optSkipParameters("Linear1.{path}")
                                .optSkipTensors("cls.{path}")
                                .build()) {
            weights.load(model, INPUT);
            Map<String, float[]> values = values(model.getBlock());
            Assert.assertEquals(values.get("Linear0.weight"), new float[12]);
            Assert.assertNotEquals(values.get("Linear1.weight"), new float[8]);
        }
    }

    @DataProvider
    public static Object[][] misfits() {
        return new Object[][] {
            misfit(
                    "everything is listed",
                    "Linear0.weight(4,5) Linear0.bias(4) Linear1.weight(2,4) other.weight(1)",
                    "own",
                    "parameter Linear0.weight (4, 3) is not Linear0.weight (4, 5)",
                    "parameter Linear1.bias (2) needs Linear1.bias, which is missing",
                    "tensor other.weight (1) is no parameter's"),
            misfit(
                    "integers are no weights",
                    "int32 weight(4,3)",
                    "weight = weight",
                    "tensor weight has the data type I32, and a parameter that is trained is F32,"
                            + " F16, BF16 or F64: freeze the parameter, or store one of these"),
            misfit(
                    "shares are equal",
                    "a(1,3) b(3,3)",
                    "weight = a + b",
                    "parameter weight (4, 3) is not a (1, 3) + b (3, 3)"),
            misfit(
                    "shares are as said",
                    "a(1,3) b(3,3)",
                    "weight = a * 3 + b",
                    "parameter weight (4, 3) is not a (1, 3) + b (3, 3)"),
            misfit(
                    "what is kept is there",
                    "Linear0.weight(4,3) Linear0.bias(4) Linear1.weight(2,4) Linear1.bias(2)",
                    "keep haed.{path}",
                    "no parameter has the path haed.{path}, which is to be kept"),
            misfit(
                    "a long list is cut", // 4 are missing, and 50 too many
                    IntStream.range(0, 50)
                            .mapToObj(i -> "other" + i + "(2,3)")
                            .collect(Collectors.joining(" ")),
                    "own",
                    "and 44 more")
        };
    }

    private static Object[] misfit(String what, String shapes, String rule, String... problems) {
        return new Object[] {what, shapes, rule, problems};
    }

    /** What does not fit is listed as a whole, and nothing is changed. */
    @Test(dataProvider = "misfits")
    public void whatDoesNotFitIsListed(String what, String shapes, String rule, String... problems)
            throws Exception {
        boolean one = rule.startsWith("weight");
        Block block = one ? linear(4, false) : sequence(linear(4), linear(2));
        NameMapping mapping = one ? NameMapping.parse(rule) : NameMapping.own();
        String[] kept = rule.startsWith("keep") ? new String[] {rule.substring(5)} : new String[0];
        boolean integers = shapes.startsWith("int32 ");
        Path path =
                file(
                        integers ? shapes.substring(6) : shapes,
                        integers ? DataType.INT32 : DataType.FLOAT32);
        try (Model model = initialized(block, INPUT);
                PretrainedWeights weights = weights(path, mapping, kept)) {
            Map<String, float[]> before = values(block);
            String message =
                    Assert.expectThrows(
                                    MalformedModelException.class, () -> weights.load(model, INPUT))
                            .getMessage();
            String start = path + " does not fit the model, which is left as it was:\n  ";
            Assert.assertTrue(message.startsWith(start), message);
            String[] listed = message.substring(start.length()).split("\n  ");
            if (problems[0].startsWith("and")) {
                Assert.assertEquals(listed.length, 10 + 1);
                Assert.assertEquals(listed[10], problems[0]);
            } else {
                Assert.assertEquals(listed, problems);
            }
            assertSame(values(block), before);
        }
    }

    /** Writes tensors of zeros, {@code name(rows,columns)} each. */
    private Path file(String shapes, DataType type) throws IOException {
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        int bytes = 0;
        for (String each : shapes.trim().split(" ")) {
            String[] words = each.split("[(),]");
            Shape shape =
                    new Shape(
                            Arrays.stream(words, 1, words.length)
                                    .mapToLong(Long::parseLong)
                                    .toArray());
            builder.addTensor(words[0], type, shape);
            bytes += (int) shape.size() * type.getNumOfBytes();
        }
        return file(builder, ByteBuffer.allocate(bytes));
    }

    private Path file(SafetensorsWriter.Builder builder, ByteBuffer bytes) throws IOException {
        Path path = folder.resolve("written.safetensors");
        try (SafetensorsWriter writer =
                builder.build(
                        FileChannel.open(
                                path, StandardOpenOption.CREATE, StandardOpenOption.WRITE))) {
            writer.write(bytes);
            writer.finish();
        }
        return path;
    }

    /**
     * What is used after its files were closed gets no other weights; nor does it without block.
     */
    @Test
    public void whatIsNotOpenOrNotThereIsSaid() throws Exception {
        Path path = file("weight(4,3)", DataType.FLOAT64);
        try (Model model = model(linear(4, false));
                Model blank = Model.newInstance("blank")) {
            PretrainedWeights weights = weights(path, NameMapping.own());
            Refusals.throwsState(
                    () -> weights.load(blank, INPUT),
                    "The model blank has no block to take the weights: call model.setBlock(...)"
                            + " before");
            weights.bind(model, INPUT);
            weights.close();
            Refusals.throwsState(
                    () ->
                            model.getBlock()
                                    .initialize(model.getNDManager(), DataType.FLOAT32, INPUT),
                    "are closed: close them after");
            Refusals.throwsState(() -> weights.bind(model, INPUT));
        }
    }

    /** DJL's engine ends the process where it is to make an array of bfloat16. */
    @Test
    public void aModelOfBFloat16IsRefused() throws Exception {
        try (Model model = model(linear(4, false));
                PretrainedWeights weights =
                        weights(file("weight(4,3)", DataType.FLOAT32), NameMapping.own())) {
            model.setDataType(DataType.BFLOAT16);
            Refusals.throwsArgument(() -> weights.load(model, INPUT));
        }
    }

    /** What is infinite in the file is so in the model, and nothing else. */
    @Test
    public void numbersBeyondFloat32AreNamed() throws Exception {
        Assert.assertEquals(
                read(Float.MAX_VALUE, 0.1, Double.NEGATIVE_INFINITY),
                new float[] {Float.MAX_VALUE, 0.1f, Float.NEGATIVE_INFINITY});
        Refusals.expect(
                UncheckedIOException.class,
                () -> read(1, -1e300, Double.POSITIVE_INFINITY),
                "tensor weight has numbers that float32 cannot hold: -1.0E300");
    }

    /** Returns the weight (1, 3) of a file of float64. */
    private float[] read(double... values) throws Exception {
        ByteBuffer bytes = ByteBuffer.allocate(8 * values.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asDoubleBuffer().put(values);
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        builder.addTensor("weight", DataType.FLOAT64, new Shape(1, values.length));
        Path path = file(builder, bytes);
        try (Model model =
                load(linear(1, false), path, NameMapping.own(), new Shape(1, values.length))) {
            return values(model.getBlock()).get("weight");
        }
    }

    @Test
    public void twoTensorsOfOneParameterMustBeEqual() throws Exception {
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        builder.addTensor("a", DataType.FLOAT32, new Shape(1));
        builder.addTensor("b", DataType.FLOAT32, new Shape(1));
        Path path = file(builder, ByteBuffer.wrap(new byte[] {0, 0, 0, 0, 0, 0, 1, 0}));
        try (WeightFiles files = WeightFiles.open(path)) {
            Assert.assertTrue(files.areEqual("a", "a"));
            Assert.assertFalse(files.areEqual("a", "b"));
        }
    }

    @DataProvider
    public static Object[][] indexes() {
        return new Object[][] {
            {"[1]", "is no index"},
            {"{\"a\": null}", "is no index"},
            {"{\"a\": {}}", "is no index"},
            {"3", "is no index"},
            {"{\"a\": \"model-00001.safetensors\"}", "is not there: [model-00001.safetensors]"},
        };
    }

    @Test(dataProvider = "indexes")
    public void anIndexOfNothingIsNamed(String map, String what) throws IOException {
        Files.writeString(folder.resolve(INDEX), "{\"weight_map\": " + map + "}");
        Refusals.expect(IOException.class, () -> WeightFiles.open(folder), what);
    }

    /** As it is left if the process ends between the last file and the removal of older ones. */
    @Test
    public void ofOldAndNewFilesTheNewerOnesAreRead() throws IOException {
        try (Model model = initialized(linear(3), INPUT)) {
            Path single = write(model.getBlock(), folder, NameMapping.own());
            Path index = folder.resolve(INDEX);
            Files.writeString(
                    index, "{\"weight_map\": {\"weight\": \"" + single.getFileName() + "\"}}");
            FileTime time = Files.getLastModifiedTime(single);
            for (int seconds : new int[] {2, -2}) {
                FileTime moved = FileTime.from(time.toInstant().plusSeconds(seconds));
                Files.setLastModifiedTime(index, moved);
                try (WeightFiles files = WeightFiles.open(folder)) {
                    Assert.assertEquals(
                            files.toString(), (seconds > 0 ? index : single).toString());
                    Assert.assertNotNull(files.get("weight"));
                }
            }
        }
    }

    /** A path that begins where the process runs has no parent in its text. */
    @Test
    public void anIndexInTheFolderOfTheProcessIsRead() throws IOException {
        List<Path> here = new ArrayList<>();
        try (Model model = initialized(linear(3), INPUT)) {
            Path index =
                    WeightExport.builder()
                            .setMapping(NameMapping.own())
                            .optName("relative")
                            .optFileBytes(1)
                            .build()
                            .write(model.getBlock(), folder);
            for (Path file : Files.list(folder).toList()) {
                here.add(Files.copy(file, file.getFileName()));
            }
            try (WeightFiles files = WeightFiles.open(index.getFileName())) {
                Assert.assertNotNull(files.get("weight"));
            }
        } finally {
            for (Path file : here) {
                Files.delete(file);
            }
        }
    }

    @DataProvider
    public static Object[][] configs() {
        String llama3 = "{\"rope_type\": \"llama3\", \"factor\": 8.0}";
        String plain = "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}";
        return new Object[][] {
            {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}", "has rope_scaling {"},
            {"{\"rope_scaling\": " + llama3 + "}", "has rope_scaling {"},
            {"{\"rope_parameters\": " + llama3 + "}", "has rope_parameters {"},
            {"{\"rope_scaling\": null}", null},
            {"{\"rope_parameters\": " + plain + "}", null},
            {"[]", null},
            {"no JSON {", null},
            {"{\"sliding_window\": 4096, \"use_sliding_window\": false}", null},
            {"{\"sliding_window\": 4096, \"max_position_embeddings\": 4096}", null},
            {"{\"sliding_window\": 4096}", "sliding_window 4096"},
        };
    }

    /** What RotaryEmbedding does not compute must not load without a word. */
    @Test(dataProvider = "configs")
    public void whatIsComputedOtherwiseIsSaid(String config, String what) throws Exception {
        Files.move(file("weight(4,3)", DataType.FLOAT32), folder.resolve("model.safetensors"));
        Files.writeString(folder.resolve("config.json"), config);
        Assert.ThrowingRunnable load =
                () -> load(linear(4, false), folder, NameMapping.own(), INPUT).close();
        if (what != null && what.contains("rope")) {
            Refusals.expect(
                    MalformedModelException.class, load, "config.json " + what, "\"factor\":");
        } else {
            String said = logged(load);
            Assert.assertTrue(what == null ? said.isEmpty() : said.contains(what), said);
        }
    }

    /** A padded table may be shorter than the parameter: it is said which rows are 0. */
    @Test
    public void aShortPaddedTableIsAWarning() throws Exception {
        Path path = file("table(3,3)", DataType.FLOAT32);
        NameMapping mapping = NameMapping.parse("weight = table : padded");
        Refusals.assertContains(
                logged(() -> load(linear(5, false), path, mapping, INPUT).close()),
                "Tensor table of",
                "has 3 rows, and parameter weight (5, 3): the last 2 are 0");
    }

    /** A tied head in the file, and two parameters here: they would differ after the first step. */
    @Test
    public void aTiedTensorOfTwoParametersIsAWarning() throws Exception {
        try (Model written = initialized(SmallModels.llama(false, true), SmallModels.INPUT)) {
            write(written.getBlock(), folder, LLAMA);
            float[] expected = SmallModels.predict(written, 0);
            try (WeightFiles files = WeightFiles.open(folder)) {
                Assert.assertNull(files.get("lm_head.weight")); // it is written once
            }
            for (boolean tied : new boolean[] {true, false}) {
                Block block = SmallModels.llama(false, tied);
                String said =
                        logged(
                                () -> {
                                    try (Model read =
                                            load(block, folder, LLAMA, SmallModels.INPUT)) {
                                        float[] actual = SmallModels.predict(read, 0);
                                        ArrayAssert.assertBitEqual(actual, expected, "outputs");
                                    }
                                });
                Assert.assertEquals(said.contains("optTiedWeight(embedding)"), !tied, said);
            }
        }
    }
}
