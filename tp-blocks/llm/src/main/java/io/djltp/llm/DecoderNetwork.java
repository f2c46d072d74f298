package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * A decoder-only language model: embedding, layers, norm, and a head that may be the embedding.
 *
 * <ul>
 *   <li>inputs: token ids [B, T], and optionally a mask [B, T] or [B, T, T], whose 0 hides a token
 *   <li>output: logits [B, T, vocabulary], whole or on a rank those of its part of the vocabulary
 * </ul>
 */
final class DecoderNetwork extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;
    private static final double TANH_LINEAR = 2 * Math.sqrt(2 / Math.PI);
    private static final double TANH_CUBIC = 0.044715 * TANH_LINEAR;

    private final ModelConfig config;
    private final VocabParallelEmbedding embedding;
    private final @Nullable PositionEmbedding positions;
    private final ParallelTransformer layers;
    private final ColumnParallelLinear head;

    /**
     * Creates a network.
     *
     * @param config the configuration
     * @param gathered whether the logits of all ranks are put together
     * @param tokensCut whether tokens are cut over the ranks between attention and MLPs
     * @param precision the arithmetic of the products
     */
    DecoderNetwork(ModelConfig config, boolean gathered, boolean tokensCut, Precision precision) {
        super(VERSION);
        this.config = config;
        embedding =
                addChildBlock(
                        "embed_tokens",
                        VocabParallelEmbedding.builder()
                                .setVocabularySize(config.getVocabularySize())
                                .setEmbeddingSize(config.getWidth())
                                .optSequenceParallel(tokensCut)
                                .build());
        Errors.check(
                !tokensCut || config.getRotary() != null,
                "Learned positions are those of all tokens, which are not to be cut");
        positions =
                config.getRotary() != null
                        ? null
                        : addChildBlock(
                                "positions", new PositionEmbedding(config.getMaxPositions()));
        List<Block> all =
                IntStream.range(0, config.getLayers())
                        .mapToObj(i -> layer(config, i, tokensCut, precision))
                        .toList();
        layers = addChildBlock("layers", new ParallelTransformer(all, norm(config)));
        ColumnParallelLinear.Builder last =
                ColumnParallelLinear.builder()
                        .setUnits(config.getVocabularySize())
                        .optGatherOutput(gathered)
                        .optSequenceParallel(tokensCut)
                        .optPrecision(precision)
                        .optBias(false);
        if (config.isTied()) {
            last.optTiedWeight(embedding);
        }
        head = addChildBlock("lm_head", last.build());
    }

    private static Block layer(
            ModelConfig config, int number, boolean tokensCut, Precision precision) {
        ParallelMultiHeadAttention.Builder attention =
                ParallelMultiHeadAttention.builder()
                        .setEmbeddingSize(config.getWidth())
                        .setHeads(config.getHeads())
                        .optKeyValueHeads(config.getKeyValueHeads())
                        .optHeadDim(config.getHeadDim())
                        .optBias(config.hasQueryKeyValueBias())
                        .optOutputBias(config.hasOutputBias())
                        .optFusedQkv(config.isFused())
                        .optCausal(true)
                        .optSequenceParallel(tokensCut)
                        .optPrecision(precision)
                        .optWindow(config.getSlidingWindow(number));
        RotaryEmbedding rotary = config.getRotary(number);
        if (rotary != null) {
            attention.optRotary(rotary);
        }
        if (config.hasQueryKeyNorm()) {
            attention.optQueryKeyNorm(config.getEpsilon());
        }
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(attention.build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(config.getWidth())
                                .setHiddenFeatures(config.getHiddenFeatures())
                                .optGated(config.isGated())
                                .optBias(config.hasMlpBias())
                                .optSequenceParallel(tokensCut)
                                .optPrecision(precision)
                                .optActivation(activation(config))
                                .build())
                .setNorm(() -> norm(config))
                .optPreNorm(true)
                .build();
    }

    static Block norm(ModelConfig config) {
        return config.isRmsNorm()
                ? RmsNorm.builder().optEpsilon(config.getEpsilon()).build()
                : LayerNorm.builder().axis(2).optEpsilon(config.getEpsilon()).build();
    }

    static Block activation(ModelConfig config) {
        return switch (config.getActivation()) {
            case SILU -> LambdaBlock.singleton(x -> Activation.sigmoid(x).mul(x));
            case GELU -> Activation.geluBlock();
            case GELU_TANH -> LambdaBlock.singleton(DecoderNetwork::geluByTanh);
            case RELU -> Activation.reluBlock();
        };
    }

    /** Computes x (1 + tanh(u / 2)) / 2, which is x sigmoid(u). */
    private static NDArray geluByTanh(NDArray x) {
        NDArray u = x.mul(x.mul(x).mul(number(x, TANH_CUBIC)).add(number(x, TANH_LINEAR)));
        return x.mul(Activation.sigmoid(u));
    }

    /** Returns a number that lives as long as an array, for its backward pass. */
    private static NDArray number(NDArray like, double value) {
        return like.getManager().create((float) value).toType(like.getDataType(), false);
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        check(inputs.getShapes());
        NDList x = embedding.forward(parameterStore, new NDList(inputs.head()), training);
        if (positions != null) {
            x = positions.forward(parameterStore, x, training);
        }
        NDList all = new NDList(x.singletonOrThrow());
        all.addAll(inputs.subNDList(1));
        return head.forward(
                parameterStore, layers.forward(parameterStore, all, training), training);
    }

    private void check(Shape... inputs) {
        boolean fits = inputs.length == 1 || inputs.length == 2;
        Errors.check(
                fits && inputs[0].dimension() == 2,
                "A language model takes token ids [B, T], and optionally a mask [B, T] or [B, T,"
                        + " T], but gets %s",
                Arrays.asList(inputs));
        long length = inputs[0].get(1);
        Errors.check(
                positions == null || length <= config.getMaxPositions(),
                "The model has %s positions, and the text %s tokens: shorten it",
                config.getMaxPositions(),
                length);
    }

    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        ForecastArray x = pass.visit(embedding, inputs.get(0));
        List<ForecastArray> all = new ArrayList<>(inputs);
        all.set(0, positions == null ? x : pass.visit(positions, x));
        return pass.visit(head, pass.visit(layers, all.toArray(new ForecastArray[0])));
    }

    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        check(inputShapes);
        Shape[] all = inputShapes.clone();
        all[0] = inputShapes[0].add(config.getWidth());
        embedding.initialize(manager, dataType, inputShapes[0]);
        if (positions != null) {
            positions.initialize(manager, dataType, all[0]);
        }
        layers.initialize(manager, dataType, all);
        head.initialize(manager, dataType, all[0]);
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0].add(config.getVocabularySize())};
    }
}
