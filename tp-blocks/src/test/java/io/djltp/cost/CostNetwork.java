package io.djltp.cost;

import static io.djltp.cost.CostNetwork.Data.FEATURES;
import static io.djltp.cost.CostNetwork.Data.IMAGES;
import static io.djltp.cost.CostNetwork.Data.ROWS;
import static io.djltp.cost.CostNetwork.Data.TOKENS;
import static io.djltp.cost.CostNetwork.Data.VECTORS;
import static io.djltp.testing.Blocks.flatten;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.newRow;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.scattered;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.table;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.convolutional.Conv2d;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.loss.Loss;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.ParallelLayerNorm;
import io.djltp.nn.Recompute;
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
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.HalfSquareLoss;

import java.util.List;
import java.util.function.Function;
import java.util.function.Supplier;

/** Networks whose cost is compared with a step: layers, heads, transformers, norms and experts. */
enum CostNetwork {
    COLUMN(FEATURES, () -> sequence(linear(6), gathered(8), linear(5))),
    FIRST_COLUMN(FEATURES, () -> sequence(gathered(5))),
    ROW(
            FEATURES,
            () ->
                    sequence(
                            linear(8),
                            newRow(5)
                                    .optInputIsParallel(false)
                                    .optBatchShardedInput(true)
                                    .build())),
    MLP(FEATURES, () -> sequence(linear(6), head(11), relu(), scattered(5))),
    RECOMPUTED(
            FEATURES,
            () -> sequence(linear(6), new Recompute(sequence(head(11), relu(), scattered(5))))),
    RESIDUAL(
            FEATURES,
            () ->
                    sequence(
                            linear(5, false),
                            sum(sequence(head(7), scattered(5)), Blocks.identityBlock()))),
    SHARED_RANGES(FEATURES, () -> sequence(linear(6), sharedRanges(2), linear(5))),
    RANGES_OF_NEIGHBOURS(
            FEATURES, () -> sequence(linear(6), sharedRanges(3), sharedRanges(3), linear(5))),
    HEAD(ROWS, () -> sequence(linear(6), relu(), classes().optFusedLoss(false).build())),
    FUSED_HEAD(ROWS, () -> sequence(linear(6), relu(), fused(9))),
    SAMPLED_HEAD(ROWS, () -> sequence(linear(6), relu(), classes().optSampleShare(0.5f).build())),
    BAG(ROWS, () -> sequence(new EmbeddingBag(20, 6), fused(9))),
    WEIGHTED_BAG(ROWS, () -> sequence(new EmbeddingBag(20, 6), fused(9))),
    CONVOLUTION(
            IMAGES,
            () -> sequence(convolution(), BatchNorm.builder().build(), flatten(), fused(9))),
    /** Statistics of the whole batch. */
    SYNC_NORM(
            IMAGES,
            () ->
                    sequence(
                            SyncBatchNorm.builder().build(),
                            convolution(),
                            SyncBatchNorm.builder().build(),
                            relu(),
                            flatten(),
                            fused(9))),
    /** Statistics of features that ranks share out. */
    CUT_NORM(
            ROWS,
            () -> sequence(head(11), ParallelLayerNorm.builder().build(), scattered(5), fused(9))),
    /** Grouped queries, a gated MLP, RMS norms, and the embedding again as the head. */
    GPT(TOKENS, CostNetwork::gpt, true),
    /**
     * Biases everywhere, one projection for queries, keys and values, norms of heads, positions.
     */
    BERT(TOKENS, CostNetwork::bert, true),
    /** Heads and hidden features that no number of ranks divides. */
    UNEVEN(TOKENS, cut -> tokens(cut, encoder(7, 4, 13, cut)), true),
    /** Norms between borders. */
    BORDERS(TOKENS, cut -> tokens(cut, norm()), true),
    /** A decoder with an encoder's output for a second input. */
    CROSS(TOKENS, () -> cross()),
    /** A fused head with the weight of the embedding. */
    TIED_HEAD(TOKENS, () -> tied()),
    /** Experts whose tokens all ranks have. */
    EXPERTS(VECTORS, () -> experts(CostNetwork.options().optTopK(2))),
    /** Experts with a slice of the hidden features of each on every rank. */
    CUT_EXPERTS(
            VECTORS,
            () ->
                    experts(
                            CostNetwork.options()
                                    .optGated(true)
                                    .optCapacityFactor(1.25)
                                    .optStrategy(ShardingStrategy.tensorParallel()))),
    /** Tokens that are exchanged, each with all experts. */
    EXCHANGED(VECTORS, () -> experts(CostNetwork.options().optTopK(4).optExchangeTokens(true)));

    static final int WIDTH = 12;
    static final int IDS = 11;

    private final Data data;
    private final Function<Boolean, Block> network;
    private final boolean cutTokens;

    CostNetwork(Data data, Supplier<Block> network) {
        this(data, cut -> network.get(), false);
    }

    CostNetwork(Data data, Function<Boolean, Block> network, boolean cutTokens) {
        this.data = data;
        this.network = network;
        this.cutTokens = cutTokens;
    }

    /** What a network is given; its 5 rows are uneven on 2 and 3 ranks. */
    enum Data {
        FEATURES(5, 4),
        ROWS(5, 4),
        IMAGES(5, 2, 5, 5),
        TOKENS(5, 7),
        VECTORS(5, 7, WIDTH);

        private final Shape shape;

        Data(long... shape) {
            this.shape = new Shape(shape);
        }
    }

    /** Returns whether this has a cost on a mesh that follows from shapes alone. */
    boolean isKnown(DeviceMesh mesh, boolean cut) {
        int tensor = mesh.getSize(DeviceMesh.TENSOR);
        boolean mixed = mesh.isOverlaid();
        switch (this) {
            case SHARED_RANGES:
                return !cut && tensor <= 2;
            case RANGES_OF_NEIGHBOURS:
                return !cut && tensor == 3;
            case TIED_HEAD: // on a mesh, the ids say how much is communicated
                return !cut && (tensor == 1 || mesh.getRanks() == tensor || mixed);
            default:
                boolean rows = data != TOKENS && data != VECTORS || this == EXCHANGED;
                return (cutTokens || !cut) && (rows || !mixed);
        }
    }

    Block create(boolean cut) {
        return network.apply(cut);
    }

    Shape[] inputs() {
        return switch (this) {
            case CROSS -> new Shape[] {data.shape, new Shape(5, 3)};
            case WEIGHTED_BAG -> new Shape[] {data.shape, data.shape};
            default -> new Shape[] {data.shape};
        };
    }

    private boolean isClassifier() {
        return data == ROWS || data == IMAGES || this == GPT || this == TIED_HEAD;
    }

    Loss loss(Block network) {
        if (isClassifier()) {
            return new VocabParallelCrossEntropyLoss();
        }
        Loss loss = data == FEATURES ? Loss.l2Loss() : new HalfSquareLoss();
        return this == EXPERTS
                ? RouterLoss.builder().setLoss(loss).setNetwork(network).build()
                : loss;
    }

    /** Makes inputs and labels. */
    NDList batch(NDManager manager) {
        NDList batch = new NDList();
        for (Shape shape : inputs()) {
            boolean bag = this == BAG || this == WEIGHTED_BAG && batch.isEmpty();
            batch.add(
                    data == TOKENS || bag
                            ? ids(manager, shape, bag ? 19 : IDS).add(bag ? 1 : 0) // all full
                            : manager.randomNormal(shape));
        }
        Shape rows = data == TOKENS || data == VECTORS ? new Shape(5, 7) : new Shape(5);
        batch.add(
                isClassifier()
                        ? ids(manager, rows, 9)
                        : manager.randomNormal(rows.add(data == FEATURES ? 5 : WIDTH)));
        return batch;
    }

    private static NDArray ids(NDManager manager, Shape shape, int limit) {
        NDArray numbers = manager.arange((float) shape.size()).mod(limit);
        return numbers.toType(DataType.INT64, false).reshape(shape);
    }

    /** Features of which each rank has two in common with its neighbours. */
    private static Block sharedRanges(int ranks) {
        Cut cut = Cut.of(2 + 2L * ranks, ranks, rank -> List.of(new ShardRange(2L * rank, 4)));
        return newColumn(cut.getLength())
                .optBatchShardedInput(true)
                .optShardingStrategy(ShardingStrategy.rowwise(cut))
                .optGatherOutput(true)
                .build();
    }

    private static ClassificationHead.Builder classes() {
        return ClassificationHead.builder().setUnits(9).optBatchShardedInput(true);
    }

    private static Block convolution() {
        return Conv2d.builder().setFilters(4).setKernelShape(new Shape(3, 3)).build();
    }

    private static VocabParallelEmbedding embedding(boolean cut) {
        return table(IDS, WIDTH).optSequenceParallel(cut).build();
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

    private static Block tokens(boolean cut, Block block) {
        return cut
                ? sequence(embedding(false), new SequenceScatter(), block, new SequenceGather())
                : sequence(embedding(false), block);
    }

    private static Block gpt(boolean cut) {
        VocabParallelEmbedding embedding = embedding(cut);
        Block head =
                newColumn(IDS)
                        .optTiedWeight(embedding)
                        .optBias(false)
                        .optSequenceParallel(cut)
                        .build();
        List<Block> layers = List.of(decoder(cut), decoder(cut));
        Block body = new ParallelTransformer(layers, RmsNorm.builder().build());
        return sequence(embedding, body, head);
    }

    private static Block decoder(boolean cut) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(
                        heads(6, cut)
                                .optKeyValueHeads(2)
                                .optBias(false)
                                .optCausal(true)
                                .optRotary(RotaryEmbedding.builder().build())
                                .build())
                .setMlp(mlp(10, true, cut))
                .setNorm(() -> RmsNorm.builder().build())
                .optPreNorm(true)
                .build();
    }

    private static Block bert(boolean cut) {
        Block layer =
                ParallelTransformerEncoderLayer.builder()
                        .setAttention(
                                heads(4, cut).optFusedQkv(true).optQueryKeyNorm(1e-5f).build())
                        .setMlp(mlp(9, false, cut))
                        .setNorm(CostNetwork::norm)
                        .build();
        Block body = new ParallelTransformer(List.of(layer), null);
        SequentialBlock ids = sequence(embedding(false), new PositionEmbedding(7));
        if (cut) {
            return ids.add(new SequenceScatter()).add(body).add(new SequenceGather());
        }
        return ids.add(body);
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
        Block head = newHead(IDS).optTiedWeight(embedding).optBatchShardedInput(true).build();
        return sequence(embedding, linear(WIDTH), head);
    }

    private static MixtureOfExperts.Builder options() {
        return MixtureOfExperts.builder().setExperts(4).setHiddenFeatures(6);
    }

    private static Block experts(MixtureOfExperts.Builder options) {
        return sequence(linear(WIDTH), options.build(), linear(WIDTH));
    }
}
