package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.exchange.NameMapping;
import io.djltp.internal.Errors;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * BERT, RoBERTa or DistilBERT, without pooler and heads.
 *
 * <ul>
 *   <li>inputs: token ids [B, T], optionally a mask [B, T] or [B, T, T], whose 0 hides a token, and
 *       optionally the kinds of the tokens [B, T]
 *   <li>output: the features of the tokens, [B, T, D]
 * </ul>
 */
final class EncoderNetwork extends AbstractBlock {

    private static final byte VERSION = 1;

    /** Words that are not padded, and what files have beside the encoder. */
    private static final String ENCODER =
            """
            {path}.embeddings.words.embedding = embeddings.word_embeddings.weight
            ignore pooler.dense.{path}
            """;

    static final String HEADS =
            """
            ignore cls.{path}
            ignore classifier.{path}
            ignore lm_head.{path}
            ignore qa_outputs.{path}
            ignore pre_classifier.{path}
            ignore vocab_{path}
            """;

    private final ModelConfig config;
    private final Block embeddings;
    private final ParallelTransformer layers;

    EncoderNetwork(ModelConfig config) {
        super(VERSION);
        this.config = config;
        embeddings = addChildBlock("embeddings", new Embeddings(config));
        List<Block> all =
                IntStream.range(0, config.getLayers()).mapToObj(i -> layer(config)).toList();
        layers = addChildBlock("encoder", new ParallelTransformer(all, null));
    }

    /** Returns the names of the tensors of BertModel and others. */
    static NameMapping mapping(ModelFamily family) {
        return family == ModelFamily.DISTILBERT
                ? family.table()
                : NameMapping.parse(ENCODER + NameMapping.bert());
    }

    private static Block layer(ModelConfig config) {
        return ParallelTransformerEncoderLayer.builder()
                .setAttention(
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(config.getWidth())
                                .setHeads(config.getHeads())
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(config.getWidth())
                                .setHiddenFeatures(config.getHiddenFeatures())
                                .optActivation(DecoderNetwork.activation(config))
                                .build())
                .setNorm(() -> DecoderNetwork.norm(config))
                .build();
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        check(inputs.getShapes());
        NDList tokens = new NDList(inputs.head());
        if (inputs.size() == 3) {
            tokens.add(inputs.get(2));
        }
        NDList all = new NDList(embeddings.forward(parameterStore, tokens, training).head());
        if (inputs.size() > 1) {
            all.add(inputs.get(1));
        }
        return layers.forward(parameterStore, all, training);
    }

    private void check(Shape... inputs) {
        boolean fits = inputs.length >= 1 && inputs.length <= 3 && inputs[0].dimension() == 2;
        fits &= inputs.length < 3 || inputs[2].equals(inputs[0]) && config.getTokenTypes() > 0;
        Errors.check(
                fits,
                "An encoder takes token ids [B, T], optionally a mask [B, T] or [B, T, T], and"
                        + " optionally the kinds of the tokens [B, T], of which a %s knows %s, but"
                        + " gets %s",
                config.getModelType(),
                config.getTokenTypes(),
                Arrays.asList(inputs));
        Errors.check(
                inputs[0].get(1) <= config.getMaxPositions(),
                "The model has %s positions, and the text %s tokens: shorten it",
                config.getMaxPositions(),
                inputs[0].get(1));
    }

    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        check(inputShapes);
        embeddings.initialize(manager, dataType, inputShapes[0]);
        layers.initialize(manager, dataType, inputShapes[0].add(config.getWidth()));
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0].add(config.getWidth())};
    }

    /** The sum of a row for the token, one for its position and one for its kind, normalized. */
    private static final class Embeddings extends AbstractBlock {

        private final int width;
        private final Block words;
        private final int first; // position
        private final Parameter positions;
        private final @Nullable Parameter kinds; // none of DistilBERT
        private final Block norm;

        Embeddings(ModelConfig config) {
            super(VERSION);
            width = config.getWidth();
            words =
                    addChildBlock(
                            "words",
                            VocabParallelEmbedding.builder()
                                    .setVocabularySize(config.getVocabularySize())
                                    .setEmbeddingSize(width)
                                    .build());
            first = config.getFirstPosition();
            positions = table("positions", first + config.getMaxPositions());
            kinds = config.getTokenTypes() == 0 ? null : table("kinds", config.getTokenTypes());
            norm = addChildBlock("norm", DecoderNetwork.norm(config));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray ids = inputs.head();
            NDArray sum = words.forward(store, new NDList(ids), training).head();
            NDArray all = store.getValue(positions, ids.getDevice(), training);
            sum = sum.add(all.get(new NDIndex().addSliceDim(first, first + ids.getShape().get(1))));
            if (kinds != null) {
                NDArray table = store.getValue(kinds, ids.getDevice(), training);
                sum = sum.add(inputs.size() == 1 ? table.get(0) : rows(table, inputs.get(1)));
            }
            return norm.forward(store, new NDList(sum), training);
        }

        private Parameter table(String name, long rows) {
            return addParameter(
                    Parameter.builder()
                            .setName(name)
                            .setType(Parameter.Type.WEIGHT)
                            .optShape(new Shape(rows, width))
                            .build());
        }

        /** Returns the row of each token, as a product with 0 and 1, whose gradient is a sum. */
        private static NDArray rows(NDArray table, NDArray kinds) {
            int count = Math.toIntExact(table.getShape().get(0));
            return kinds.oneHot(count).toType(table.getDataType(), false).matMul(table);
        }

        @Override
        protected void initializeChildBlocks(
                NDManager manager, DataType dataType, Shape... inputShapes) {
            words.initialize(manager, dataType, inputShapes[0]);
            norm.initialize(manager, dataType, inputShapes[0].add(width));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return new Shape[] {inputShapes[0].add(width)};
        }
    }
}
