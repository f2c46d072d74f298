package io.djltp.exchange;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.util.PairList;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.parameters.SlicedInitializer;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelPredictor;

import java.io.IOException;
import java.io.InputStream;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
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
        return new Bert(20, 5, 22, stacked);
    }

    /** Returns a Llama of 6 query heads and 3 key/value heads of 4 features. */
    static Block llama(boolean stacked) {
        return llama(stacked, false);
    }

    /** Returns a Llama whose head may be its embedding. */
    static Block llama(boolean stacked, boolean tied) {
        VocabParallelEmbedding embedding =
                VocabParallelEmbedding.builder()
                        .setVocabularySize(VOCABULARY)
                        .setEmbeddingSize(24)
                        .build();
        List<Block> layers =
                IntStream.range(0, LAYERS).<Block>mapToObj(i -> llamaLayer(stacked)).toList();
        ColumnParallelLinear.Builder head =
                ColumnParallelLinear.builder()
                        .setUnits(VOCABULARY)
                        .optBias(false)
                        .optGatherOutput(true);
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
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(24)
                                .setHeads(6)
                                .optKeyValueHeads(3)
                                .optFusedQkv(stacked)
                                .optRotary(RotaryEmbedding.builder().build())
                                .optCausal(true)
                                .optBias(false)
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(24)
                                .setHiddenFeatures(26)
                                .optGated(true)
                                .optBias(false)
                                .build())
                .setNorm(() -> RmsNorm.builder().optEpsilon(1e-5f).build())
                .optPreNorm(true)
                .build();
    }

    /** Returns a file of the resources. */
    static Path file(String name) {
        try {
            return Path.of(SmallModels.class.getResource("/exchange/" + name).toURI());
        } catch (URISyntaxException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns what reads a parameter w of a shape. */
    static SlicedInitializer source(WeightFiles files, String rule, Shape shape)
            throws IOException, MalformedModelException {
        Parameter parameter =
                Parameter.builder()
                        .setName("w")
                        .setType(Parameter.Type.WEIGHT)
                        .optShape(shape)
                        .build();
        WeightAssignment assignment =
                new WeightAssignment(
                        files, NameMapping.parse(rule), Map.of("w", parameter), Map.of());
        assignment.setShape(parameter, shape);
        return assignment
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
        return block instanceof Bert ? new Shape[] {INPUT, INPUT} : new Shape[] {INPUT};
    }

    /** Returns the ranks. */
    static ParallelConfig ranks(int count) {
        return ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(count).build();
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
            if (model.getBlock() instanceof Bert) {
                list.add(manager.create(MASK, INPUT));
            }
            return predictor.predict(list).singletonOrThrow().toFloatArray();
        }
    }

    /** Embeddings, layers. */
    private static final class Bert extends AbstractBlock {

        private final Embeddings embeddings;
        private final ParallelTransformer layers;

        Bert(long width, int heads, long hidden, boolean stacked) {
            super((byte) 1);
            embeddings = addChildBlock("embeddings", new Embeddings(width));
            List<Block> list =
                    IntStream.range(0, LAYERS)
                            .<Block>mapToObj(i -> layer(width, heads, hidden, stacked))
                            .toList();
            layers = addChildBlock("encoder", new ParallelTransformer(list, null));
        }

        private static Block layer(long width, int heads, long hidden, boolean stacked) {
            if (!stacked) {
                return ParallelTransformerEncoderLayer.bert(width, heads, hidden, 0);
            }
            return ParallelTransformerEncoderLayer.builder()
                    .setAttention(
                            ParallelMultiHeadAttention.builder()
                                    .setEmbeddingSize(width)
                                    .setHeads(heads)
                                    .optFusedQkv(true)
                                    .build())
                    .setMlp(ParallelMlp.builder().setUnits(width).setHiddenFeatures(hidden).build())
                    .setNorm(() -> LayerNorm.builder().axis(2).optEpsilon(1e-12f).build())
                    .build();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDList x = embeddings.forward(store, new NDList(inputs.head()), training);
            return layers.forward(store, new NDList(x.head(), inputs.get(1)), training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return embeddings.getOutputShapes(inputs);
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... inputs) {
            embeddings.initialize(manager, type, inputs[0]);
            layers.initialize(manager, type, getOutputShapes(inputs)[0], inputs[1]);
        }
    }

    /** A row for the word, one for its position and one for its kind, normalized. */
    private static final class Embeddings extends AbstractBlock {

        private final long width;
        private final VocabParallelEmbedding words;
        private final PositionEmbedding positions = new PositionEmbedding(8);
        private final LayerNorm norm = LayerNorm.builder().axis(2).optEpsilon(1e-12f).build();
        private final Parameter kinds;

        Embeddings(long width) {
            super((byte) 1);
            this.width = width;
            words =
                    addChildBlock(
                            "words",
                            VocabParallelEmbedding.builder()
                                    .setVocabularySize(VOCABULARY)
                                    .setEmbeddingSize(width)
                                    .build());
            addChildBlock("positions", positions);
            addChildBlock("norm", norm);
            kinds =
                    addParameter(
                            Parameter.builder()
                                    .setName("kinds")
                                    .setType(Parameter.Type.WEIGHT)
                                    .optShape(new Shape(2, width))
                                    .build());
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = words.forward(store, inputs, training).singletonOrThrow();
            NDArray kind = store.getValue(kinds, x.getDevice(), training).get(0);
            NDList sum = positions.forward(store, new NDList(x.add(kind)), training);
            return norm.forward(store, sum, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return new Shape[] {inputs[0].add(width)};
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... inputs) {
            words.initialize(manager, type, inputs);
            Shape x = getOutputShapes(inputs)[0];
            positions.initialize(manager, type, x);
            norm.initialize(manager, type, x);
        }
    }
}
