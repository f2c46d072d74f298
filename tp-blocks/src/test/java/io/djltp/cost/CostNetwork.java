package io.djltp.cost;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.Loss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.SequenceGather;
import io.djltp.nn.SequenceScatter;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.nn.moe.RouterLoss;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.nn.transformer.ParallelTransformerEncoderLayer;
import io.djltp.nn.transformer.PositionEmbedding;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.HalfSquareLoss;

import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;

/** Networks of transformers, norms and experts whose cost is compared with a step. */
enum CostNetwork {
    /** Grouped queries, a gated MLP, RMS norms, and the embedding again as the head. */
    GPT(true, CostNetwork::gpt),
    /**
     * Biases everywhere, one projection for queries, keys and values, norms of heads, positions.
     */
    BERT(true, CostNetwork::bert),
    /** Heads and hidden features that no number of ranks divides. */
    UNEVEN(true, cut -> sequence(cut, encoder(7, 4, 13, cut))),
    /** Norms between borders. */
    BORDERS(true, cut -> sequence(cut, norm())),
    /** A decoder with an encoder's output for a second input. */
    CROSS(true, cut -> cross(), false),
    /** A fused head with the weight of the embedding. */
    TIED_HEAD(true, cut -> tied(), false),
    /** Experts whose tokens all ranks have. */
    EXPERTS(false, cut -> experts(CostNetwork.options().optTopK(2)), false),
    /** Experts with a slice of the hidden features of each on every rank. */
    CUT_EXPERTS(
            false,
            cut ->
                    experts(
                            CostNetwork.options()
                                    .optGated(true)
                                    .optCapacityFactor(1.25)
                                    .optStrategy(ShardingStrategy.tensorParallel())),
            false),
    /** Tokens that are exchanged, each with all experts. */
    EXCHANGED(
            false, cut -> experts(CostNetwork.options().optTopK(4).optExchangeTokens(true)), false),
    /** Statistics of the whole batch. */
    SYNC_NORM(false, cut -> convolution(), false);

    static final int BATCH = 5; // uneven on 2 and 3 ranks
    static final int TOKENS = 7;
    static final int WIDTH = 12;
    static final int IDS = 11;

    private final boolean ids;
    private final Function<Boolean, Block> network;
    private final boolean cutTokens;

    CostNetwork(boolean ids, Function<Boolean, Block> network) {
        this(ids, network, true);
    }

    CostNetwork(boolean ids, Function<Boolean, Block> network, boolean cutTokens) {
        this.ids = ids;
        this.network = network;
        this.cutTokens = cutTokens;
    }

    /** Returns whether its tokens can be cut. */
    boolean canCutTokens() {
        return cutTokens;
    }

    Block create(boolean cut) {
        return network.apply(cut);
    }

    Shape[] inputs() {
        switch (this) {
            case SYNC_NORM:
                return new Shape[] {new Shape(BATCH, 2, 5, 5)};
            case CROSS:
                return new Shape[] {new Shape(BATCH, TOKENS), new Shape(BATCH, 3)};
            default:
                return new Shape[] {
                    ids ? new Shape(BATCH, TOKENS) : new Shape(BATCH, TOKENS, WIDTH)
                };
        }
    }

    Loss loss(Block network) {
        Loss loss =
                this == GPT || this == TIED_HEAD || this == SYNC_NORM
                        ? new VocabParallelCrossEntropyLoss()
                        : new HalfSquareLoss();
        return this == EXPERTS
                ? RouterLoss.builder().setLoss(loss).setNetwork(network).build()
                : loss;
    }

    /** Makes inputs and labels. */
    NDList batch(NDManager manager) {
        NDList batch = new NDList();
        for (Shape shape : inputs()) {
            NDArray numbers = manager.arange((float) shape.size()).reshape(shape);
            batch.add(
                    ids
                            ? numbers.mod(IDS).toType(DataType.INT64, false)
                            : manager.randomNormal(shape));
        }
        boolean classes = loss(Blocks.identityBlock()) instanceof VocabParallelCrossEntropyLoss;
        Shape rows = this == SYNC_NORM ? new Shape(BATCH) : new Shape(BATCH, TOKENS);
        batch.add(
                classes
                        ? manager.arange((float) rows.size())
                                .mod(9)
                                .toType(DataType.INT64, false)
                                .reshape(rows)
                        : manager.randomNormal(new Shape(BATCH, TOKENS, WIDTH)));
        return batch;
    }

    private static VocabParallelEmbedding embedding(boolean cut) {
        return VocabParallelEmbedding.builder()
                .setVocabularySize(IDS)
                .setEmbeddingSize(WIDTH)
                .optSequenceParallel(cut)
                .build();
    }

    static Block norm() {
        return LayerNorm.builder().axis(2).build();
    }

    private static ParallelMultiHeadAttention.Builder heads(int heads, boolean cut) {
        return ParallelMultiHeadAttention.builder()
                .setEmbeddingSize(WIDTH)
                .setHeads(heads)
                .optSequenceParallel(cut);
    }

    private static ParallelMlp mlp(long hidden, boolean gated, boolean cut) {
        return ParallelMlp.builder()
                .setUnits(WIDTH)
                .setHiddenFeatures(hidden)
                .optGated(gated)
                .optBias(!gated)
                .optSequenceParallel(cut)
                .build();
    }

    private static Block encoder(int heads, long headDim, long hidden, boolean cut) {
        return ParallelTransformerEncoderLayer.builder()
                .setAttention(heads(heads, cut).optHeadDim(headDim).optDropout(0.1f).build())
                .setMlp(mlp(hidden, false, cut))
                .setNorm(CostNetwork::norm)
                .optDropout(0.1f)
                .build();
    }

    private static Block sequence(boolean cut, Block block) {
        SequentialBlock network = new SequentialBlock().add(embedding(false));
        if (!cut) {
            return network.add(block);
        }
        return network.add(new SequenceScatter()).add(block).add(new SequenceGather());
    }

    private static Block gpt(boolean cut) {
        VocabParallelEmbedding embedding = embedding(cut);
        List<Block> layers =
                IntStream.range(0, 2)
                        .mapToObj(
                                i ->
                                        (Block)
                                                ParallelTransformerDecoderLayer.builder()
                                                        .setAttention(
                                                                heads(6, cut)
                                                                        .optKeyValueHeads(2)
                                                                        .optBias(false)
                                                                        .optCausal(true)
                                                                        .optRotary(
                                                                                RotaryEmbedding
                                                                                        .builder()
                                                                                        .build())
                                                                        .build())
                                                        .setMlp(mlp(10, true, cut))
                                                        .setNorm(() -> RmsNorm.builder().build())
                                                        .optPreNorm(true)
                                                        .build())
                        .toList();
        return new SequentialBlock()
                .add(embedding)
                .add(new ParallelTransformer(layers, RmsNorm.builder().build()))
                .add(
                        ColumnParallelLinear.builder()
                                .setUnits(IDS)
                                .optTiedWeight(embedding)
                                .optBias(false)
                                .optSequenceParallel(cut)
                                .build());
    }

    private static Block bert(boolean cut) {
        Block layer =
                ParallelTransformerEncoderLayer.builder()
                        .setAttention(
                                heads(4, cut).optFusedQkv(true).optQueryKeyNorm(1e-5f).build())
                        .setMlp(mlp(9, false, cut))
                        .setNorm(CostNetwork::norm)
                        .build();
        SequentialBlock network =
                new SequentialBlock().add(embedding(false)).add(new PositionEmbedding(TOKENS));
        if (cut) {
            network.add(new SequenceScatter());
        }
        network.add(new ParallelTransformer(List.of(layer), null));
        return cut ? network.add(new SequenceGather()) : network;
    }

    private static Block cross() {
        return new EncoderDecoder(
                embedding(false),
                encoder(4, 3, 8, false),
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(heads(4, false).optCausal(true).build())
                        .optCrossAttention(
                                heads(4, false).optKeyValueHeads(2).optCrossAttention(true).build())
                        .setMlp(mlp(8, false, false))
                        .setNorm(CostNetwork::norm)
                        .build());
    }

    private static Block tied() {
        VocabParallelEmbedding embedding = embedding(false);
        return new SequentialBlock()
                .add(embedding)
                .add(Linear.builder().setUnits(WIDTH).build())
                .add(
                        ClassificationHead.builder()
                                .setUnits(IDS)
                                .optTiedWeight(embedding)
                                .optBatchShardedInput(true)
                                .build());
    }

    private static MixtureOfExperts.Builder options() {
        return MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(6);
    }

    private static Block experts(MixtureOfExperts.Builder options) {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(WIDTH).build())
                .add(options.build())
                .add(Linear.builder().setUnits(WIDTH).build());
    }

    private static Block convolution() {
        return new SequentialBlock()
                .add(SyncBatchNorm.builder().build())
                .add(Conv2d.builder().setFilters(4).setKernelShape(new Shape(3, 3)).build())
                .add(SyncBatchNorm.builder().build())
                .add(Activation::relu)
                .add(Blocks.batchFlattenBlock())
                .add(ClassificationHead.builder().setUnits(9).optBatchShardedInput(true).build());
    }
}
