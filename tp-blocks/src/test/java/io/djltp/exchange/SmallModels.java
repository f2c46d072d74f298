package io.djltp.exchange;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.table;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Ranks;
import io.djltp.testing.Unchecked;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/** The models of {@code src/test/resources/exchange/reference.py}, and what they compute there. */
final class SmallModels {

    static final Shape INPUT = new Shape(2, 5);
    static final long VOCABULARY = 13;
    static final NameMapping LLAMA = NameMapping.llama(6, 3);

    private static final int LAYERS = 2;
    private static final long[] IDS = {1, 7, 3, 12, 0, 2, 2, 9, 11, 5};
    private static final long[] MASK = {1, 1, 1, 1, 0, 1, 1, 1, 1, 1};

    private SmallModels() {}

    /** Returns a BERT of 5 heads of 4 features. */
    static Block bert(boolean stacked) {
        long width = 20;
        Supplier<Block> layer =
                () ->
                        ParallelTransformerEncoderLayer.builder()
                                .setAttention(attention(width, 5).optFusedQkv(true).build())
                                .setMlp(mlp(width, 22).build())
                                .setNorm(SmallModels::norm)
                                .build();
        List<Block> layers =
                IntStream.range(0, LAYERS)
                        .<Block>mapToObj(
                                i ->
                                        stacked
                                                ? layer.get()
                                                : ParallelTransformerEncoderLayer.bert(
                                                        width, 5, 22, 0))
                        .toList();
        Block words = table(VOCABULARY, width).build();
        Shape row = new Shape(5, width);
        Block embeddings = // a row for the word, one for its position and one for its kind
                new GraphBlock(
                                row,
                                (call, in) -> {
                                    NDArray x = call.call("words", in.head());
                                    x = x.add(call.value("kinds").get(0));
                                    return call.list("norm", call.call("positions", x));
                                })
                        .add("kinds", new Shape(2, width))
                        .add("words", words, 5)
                        .add("positions", new PositionEmbedding(8), 5, width)
                        .add("norm", norm(), 5, width);
        return new GraphBlock(
                        row,
                        (call, in) -> {
                            NDArray x = call.call("embeddings", in.head());
                            return call.list("encoder", x, in.get(1));
                        })
                .add("embeddings", embeddings, 5)
                .add("encoder", new ParallelTransformer(layers, null), 5, width);
    }

    private static LayerNorm norm() {
        return LayerNorm.builder().axis(2).optEpsilon(1e-12f).build();
    }

    /** Returns a Llama of 6 query heads and 3 key/value heads of 4 features. */
    static Block llama(boolean stacked) {
        return llama(stacked, false);
    }

    /** Returns a Llama whose head may be its embedding. */
    static Block llama(boolean stacked, boolean tied) {
        VocabParallelEmbedding embedding = table(VOCABULARY, 24).build();
        List<Block> layers =
                IntStream.range(0, LAYERS).<Block>mapToObj(i -> llamaLayer(stacked)).toList();
        ColumnParallelLinear.Builder head =
                newColumn(VOCABULARY).optBias(false).optGatherOutput(true);
        if (tied) {
            head.optTiedWeight(embedding);
        }
        return new SequentialBlock()
                .add(embedding)
                .add(new ParallelTransformer(layers, RmsNorm.builder().optEpsilon(1e-5f).build()))
                .add(head.build());
    }

    private static Block llamaLayer(boolean stacked) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        attention(24, 6)
                                .optKeyValueHeads(3)
                                .optFusedQkv(stacked)
                                .optRotary(RotaryEmbedding.builder().build())
                                .optCausal(true)
                                .optBias(false)
                                .build())
                .setMlp(mlp(24, 26).optGated(true).optBias(false).build())
                .setNorm(() -> RmsNorm.builder().optEpsilon(1e-5f).build())
                .optPreNorm(true)
                .build();
    }

    /** Returns a file of the resources. */
    static Path file(String name) {
        return Unchecked.call(
                () -> Path.of(SmallModels.class.getResource("/exchange/" + name).toURI()));
    }

    /** Returns what reads a parameter w of a shape. */
    static SlicedInitializer source(WeightFiles files, String rule, Shape shape)
            throws IOException, MalformedModelException {
        Parameter parameter = Blocks.parameter("w", shape);
        Map<String, WeightAssignment.Target> tree =
                Map.of("w", new WeightAssignment.Target(parameter, shape, null));
        return new WeightAssignment(files, NameMapping.parse(rule), tree)
                .find(List.of(), List.of(new NameMapping.NamePattern("{path}")))
                .get(parameter);
    }

    /** Returns what PyTorch computed. */
    static float[] reference(String model) throws IOException {
        try (InputStream is = SmallModels.class.getResourceAsStream("/exchange/outputs.txt")) {
            String text = new String(is.readAllBytes(), StandardCharsets.UTF_8);
            String[] words =
                    text.lines()
                            .filter(line -> line.startsWith(model + " "))
                            .findFirst()
                            .orElseThrow()
                            .split(" ");
            float[] values = new float[words.length - 1];
            for (int i = 0; i < values.length; i++) {
                values[i] = Float.parseFloat(words[i + 1]);
            }
            return values;
        }
    }

    /** Returns the shapes of the inputs of a model. */
    static Shape[] inputs(Block block) {
        return block instanceof GraphBlock ? new Shape[] {INPUT, INPUT} : new Shape[] {INPUT};
    }

    /** Returns the ranks. */
    static ParallelConfig ranks(int count) {
        return Ranks.config(ParallelMode.TENSOR, count);
    }

    /** Returns a model of a block without values. */
    static Model model(Block block) {
        Model model = Model.newInstance("m");
        model.setBlock(block);
        return model;
    }

    /** Returns a model of a block with random values. */
    static Model initialized(Block block, Shape... inputs) {
        Model model = model(block);
        block.initialize(model.getNDManager(), DataType.FLOAT32, inputs);
        return model;
    }

    /** Opens weights. */
    static PretrainedWeights weights(Path path, NameMapping mapping, String... skipped)
            throws IOException {
        return PretrainedWeights.builder()
                .setPath(path)
                .setMapping(mapping)
                .optSkipParameters(skipped)
                .build();
    }

    /** Returns a model with weights of files. */
    static Model load(Block block, Path path, NameMapping mapping, Shape... inputs)
            throws IOException, MalformedModelException {
        Model model = model(block);
        try (PretrainedWeights weights = weights(path, mapping)) {
            weights.load(model, inputs);
            return model;
        } catch (IOException | MalformedModelException | RuntimeException e) {
            model.close();
            throw e;
        }
    }

    /** Writes weights instead of those that are there. */
    static Path write(Block block, Path folder, NameMapping mapping) throws IOException {
        return WeightExport.builder()
                .setMapping(mapping)
                .optOverwrite(true)
                .build()
                .write(block, folder);
    }

    /** Returns the values of the parameters by path. */
    static Map<String, float[]> values(Block block) {
        Map<String, float[]> values = new LinkedHashMap<>();
        NameMapping.paths(block)
                .forEach((path, each) -> values.put(path, each.getArray().toFloatArray()));
        return values;
    }

    /** Asserts that two trees have the same values, bit for bit. */
    static void assertSame(Map<String, float[]> actual, Map<String, float[]> expected) {
        Assert.assertEquals(actual.keySet(), expected.keySet());
        expected.forEach((path, each) -> ArrayAssert.assertBitEqual(actual.get(path), each, path));
    }

    /** Predicts on ranks, or with DJL's predictor if there are none. */
    static float[] predict(Model model, int ranks) throws TranslateException {
        NoopTranslator translator = new NoopTranslator(null);
        try (NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor =
                        ranks == 0
                                ? model.newPredictor(translator)
                                : new ParallelPredictor<>(model, translator, ranks(ranks))) {
            NDList list = new NDList(manager.create(IDS, INPUT));
            if (model.getBlock() instanceof GraphBlock) {
                list.add(manager.create(MASK, INPUT));
            }
            return predictor.predict(list).singletonOrThrow().toFloatArray();
        }
    }
}
