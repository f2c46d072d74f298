package io.djltp.plan;

import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.AbstractBaseBlock;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Embedding;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.ParallelLayerNorm;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.SyncBatchNorm;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.plan.ParallelAttention.Projections;
import io.djltp.plan.ParallelTransformerEncoder.Parts;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/**
 * The parallel block of each of DJL's blocks, with the same parameters, and the way back. What
 * DJL's blocks are made of is in private fields, see {@link PrivateFields}.
 */
final class Styles {

    static final BlockStyle HEAD =
            style("head()", "Linear", ClassificationHead.class, Styles::isLinear, Styles::head);
    static final BlockStyle DROPOUT =
            style(
                    "dropout()",
                    "Dropout",
                    ParallelDropout.class,
                    block -> block.getClass() == Dropout.class,
                    Styles::dropout);
    static final BlockStyle BATCH_NORM =
            style(
                    "batchNorm()",
                    "BatchNorm",
                    SyncBatchNorm.class,
                    block -> block.getClass() == BatchNorm.class,
                    Styles::batchNorm);
    static final BlockStyle LAYER_NORM =
            style(
                    "layerNorm()",
                    "LayerNorm",
                    ParallelLayerNorm.class,
                    block -> block.getClass() == LayerNorm.class,
                    block ->
                            PrivateFields.copy(
                                    block, ParallelLayerNorm.builder().build(), LayerNorm.class));
    static final BlockStyle VOCABULARY =
            style(
                    "vocabulary()",
                    "Embedding, with a dense gradient",
                    ReplacedEmbedding.class,
                    Styles::isDenseEmbedding,
                    Styles::embedding);
    static final BlockStyle ATTENTION =
            style(
                    "attention()",
                    "ScaledDotProductAttentionBlock",
                    ParallelAttention.class,
                    Styles::isAttention,
                    Styles::attention);
    static final BlockStyle ENCODER =
            style(
                    "encoder()",
                    "TransformerEncoderBlock",
                    ParallelTransformerEncoder.class,
                    Styles::isEncoder,
                    block -> encoder(block, null));

    /**
     * The style of {@link BertBlock}, which stays: its class is final, and other blocks hold it by
     * that class. Its encoders become parallel ones.
     */
    static final BlockStyle BERT =
            style("bert()", "BertBlock", BertBlock.class, Styles::isBert, Styles::bert);

    static final BlockStyle REPLICATE =
            new BlockStyle("replicate()", "any block", null, block -> true, block -> block);

    /** Those that are styles of all blocks below the block, too. */
    static final Set<BlockStyle> WHOLE = Set.of(ATTENTION, ENCODER, BERT, REPLICATE);

    /** DJL's block with the parameters of a parallel one, by the class of that. */
    private static final Map<Class<?>, UnaryOperator<Block>> PLAIN =
            Map.of(
                    ColumnParallelLinear.class, Styles::plainLinear,
                    RowParallelLinear.class, Styles::plainLinear,
                    ClassificationHead.class, Styles::plainLinear,
                    ParallelDropout.class, Styles::plainDropout,
                    SyncBatchNorm.class, Styles::plainBatchNorm,
                    ParallelLayerNorm.class, Styles::plainLayerNorm,
                    ReplacedEmbedding.class, Styles::plainEmbedding,
                    ParallelAttention.class, Styles::plainAttention,
                    ParallelTransformerEncoder.class, Styles::plainEncoder);

    private static final Class<?> BERT_TYPE = BertBlock.class;
    private static final Class<?> ATTENTION_TYPE = ScaledDotProductAttentionBlock.class;
    private static final String PROBABILITY_DROPOUT = "attentionProbsDropout";

    private static final Class<?> ENCODER_TYPE = TransformerEncoderBlock.class;
    private static final String SELF_ATTENTION = "selfAttentionBlock";
    private static final List<String> ENCODER_FIELDS =
            List.of(
                    SELF_ATTENTION,
                    "selfAttentionDropout",
                    "attentionNorm",
                    "pointWisefullyConnected",
                    "fullyConnectedDropout",
                    "outputNorm");
    private static final List<String> NORM_FIELDS =
            List.of("axis", "epsilon", "momentum", "gamma", "beta", "runningMean", "runningVar");

    private Styles() {}

    private static BlockStyle style(
            String name,
            String djl,
            Class<? extends Block> type,
            Predicate<Block> isFor,
            UnaryOperator<Block> parallel) {
        return new BlockStyle(name, "DJL's " + djl, type, isFor, parallel);
    }

    // Linear

    /** Returns whether a block is DJL's own linear layer, not one that overrides it. */
    static boolean isLinear(Block block) {
        return block.getClass() == Linear.class;
    }

    static long units(Block linear) {
        return PrivateFields.<Long>read(linear, Linear.class, "units");
    }

    static boolean hasBias(Block linear) {
        return linear.getDirectParameters().get("bias") != null;
    }

    /** Gives a layer the parameters of another one, and the shapes that it is initialized for. */
    static <T extends Linear> T move(Block from, T to) {
        return PrivateFields.copy(from, to, Linear.class);
    }

    private static Block head(Block block) {
        return move(
                block,
                ClassificationHead.builder()
                        .setUnits(units(block))
                        .optBias(hasBias(block))
                        .optBatchShardedInput(true) // where MIXED mode cuts the body by rows
                        .build());
    }

    private static Linear plainLinear(Block parallel) {
        Linear.Builder builder = Linear.builder().setUnits(units(parallel));
        return move(parallel, builder.optBias(hasBias(parallel)).build());
    }

    // Dropout

    /** Returns the rate of one of DJL's dropouts. */
    static float rateOf(Block dropout) {
        return PrivateFields.<Float>read(dropout, Dropout.class, "rate");
    }

    private static ParallelDropout dropout(Block block) {
        ParallelDropout dropout = ParallelDropout.builder().optRate(rateOf(block)).build();
        return PrivateFields.copy(block, dropout, AbstractBlock.class);
    }

    private static Dropout plainDropout(Block parallel) {
        float rate = ((ParallelDropout) parallel).getRate();
        Dropout dropout = Dropout.builder().optRate(rate).build();
        return PrivateFields.copy(parallel, dropout, AbstractBlock.class);
    }

    // BatchNorm

    private static SyncBatchNorm batchNorm(Block block) {
        SyncBatchNorm norm = SyncBatchNorm.builder().build();
        moveNorm(block, BatchNorm.class, norm, SyncBatchNorm.class);
        move(block, BatchNorm.class, "inChannels", norm, SyncBatchNorm.class, "channels");
        return norm;
    }

    private static BatchNorm plainBatchNorm(Block block) {
        BatchNorm norm =
                BatchNorm.builder()
                        .optCenter(isTrained(block, "beta"))
                        .optScale(isTrained(block, "gamma"))
                        .build();
        moveNorm(block, SyncBatchNorm.class, norm, BatchNorm.class);
        move(block, SyncBatchNorm.class, "channels", norm, BatchNorm.class, "inChannels");
        return norm;
    }

    private static boolean isTrained(Block block, String name) {
        return PrivateFields.<Parameter>read(block, SyncBatchNorm.class, name).requiresGradient();
    }

    private static void moveNorm(Block from, Class<?> type, Block to, Class<?> other) {
        NORM_FIELDS.forEach(name -> move(from, type, name, to, other, name));
        PrivateFields.copy(from, to, AbstractBlock.class);
    }

    private static void move(
            Block from, Class<?> type, String name, Block to, Class<?> other, String newName) {
        PrivateFields.write(to, other, newName, PrivateFields.read(from, type, name));
    }

    private static LayerNorm plainLayerNorm(Block parallel) {
        return PrivateFields.copy(parallel, LayerNorm.builder().build(), LayerNorm.class);
    }

    // Embedding

    /** An embedding that was DJL's, which it keeps, because that one knows the words. */
    private static final class ReplacedEmbedding extends VocabParallelEmbedding {

        private final Supplier<AbstractBlock> original; // it is no block of the network any more

        ReplacedEmbedding(VocabParallelEmbedding.Builder builder, AbstractBlock original) {
            super(builder);
            this.original = () -> original;
        }
    }

    private static boolean isDenseEmbedding(Block block) {
        return block instanceof Embedding
                && block.getClass().getName().startsWith("ai.djl.")
                && PrivateFields.read(block, Embedding.class, "sparseFormat") == SparseFormat.DENSE;
    }

    static int words(Block embedding) {
        return PrivateFields.<Integer>read(embedding, Embedding.class, "numEmbeddings");
    }

    private static Block embedding(Block block) {
        int features = PrivateFields.<Integer>read(block, Embedding.class, "embeddingSize");
        Parameter table = PrivateFields.read(block, Embedding.class, "embedding");
        if (!table.isInitialized()) { // else DJL's block gives it a shape when it is initialized
            table.setShape(new Shape(words(block), features));
        }
        ReplacedEmbedding embedding =
                new ReplacedEmbedding(
                        VocabParallelEmbedding.builder()
                                .setVocabularySize(words(block))
                                .setEmbeddingSize(features),
                        (AbstractBlock) block);
        PrivateFields.write(embedding, VocabParallelEmbedding.class, "weight", table);
        return PrivateFields.copy(block, embedding, AbstractBlock.class);
    }

    private static Block plainEmbedding(Block parallel) {
        AbstractBlock original = ((ReplacedEmbedding) parallel).original.get();
        return PrivateFields.copy(parallel, original, AbstractBlock.class);
    }

    // ScaledDotProductAttentionBlock

    private static boolean isAttention(Block block) {
        return block.getClass() == ATTENTION_TYPE
                && embeddingSize(block) % headsOfAttention(block) == 0;
    }

    private static int embeddingSize(Block attention) {
        return PrivateFields.<Integer>read(attention, ATTENTION_TYPE, "embeddingSize");
    }

    private static int headsOfAttention(Block attention) {
        return PrivateFields.<Integer>read(attention, ATTENTION_TYPE, "headCount");
    }

    private static List<Linear> projections(Block block) {
        ScaledDotProductAttentionBlock attention = (ScaledDotProductAttentionBlock) block;
        return List.of(
                attention.getKeyProjection(),
                attention.getQueryProjection(),
                attention.getValueProjection(),
                attention.getResultProjection());
    }

    private static ParallelAttention attention(Block block) {
        int heads = headsOfAttention(block);
        long headDim = embeddingSize(block) / heads;
        Projections made = Projections.of(heads, headDim);
        List<Linear> parallel = List.of(made.key(), made.query(), made.value(), made.result());
        for (int i = 0; i < parallel.size(); i++) {
            move(projections(block).get(i), parallel.get(i));
        }
        Block dropout = PrivateFields.read(block, ATTENTION_TYPE, PROBABILITY_DROPOUT);
        return PrivateFields.copy(
                block,
                new ParallelAttention(heads, headDim, made, dropout(dropout)),
                AbstractBaseBlock.class);
    }

    private static ScaledDotProductAttentionBlock plainAttention(Block block) {
        ParallelAttention parallel = (ParallelAttention) block;
        ScaledDotProductAttentionBlock attention =
                ScaledDotProductAttentionBlock.builder()
                        .setEmbeddingSize((int) (parallel.getHeads() * parallel.getHeadDim()))
                        .setHeadCount(parallel.getHeads())
                        .optAttentionProbsDropoutProb(parallel.getDropout().getRate())
                        .build();
        List<Linear> plain = projections(attention);
        for (int i = 0; i < plain.size(); i++) {
            move(parallel.getChildren().get(i).getValue(), plain.get(i));
        }
        Block dropout = PrivateFields.read(attention, ATTENTION_TYPE, PROBABILITY_DROPOUT);
        PrivateFields.copy(parallel.getDropout(), dropout, AbstractBlock.class);
        return PrivateFields.copy(parallel, attention, AbstractBaseBlock.class);
    }

    // TransformerEncoderBlock

    private static boolean isEncoder(Block block) {
        return block.getClass() == ENCODER_TYPE && isAttention(part(block, SELF_ATTENTION));
    }

    private static Block part(Block encoder, String name) {
        return PrivateFields.read(encoder, ENCODER_TYPE, name);
    }

    /** Makes an encoder parallel, with a dropout of its input that may be {@code null}. */
    private static Block encoder(Block block, @Nullable ParallelDropout inputDropout) {
        List<Block> parts = ENCODER_FIELDS.stream().map(name -> part(block, name)).toList();
        ParallelTransformerEncoder encoder =
                new ParallelTransformerEncoder(
                        new Parts(
                                inputDropout,
                                attention(parts.get(0)),
                                dropout(parts.get(1)),
                                batchNorm(parts.get(2)),
                                cutPairs((SequentialBlock) parts.get(3)),
                                dropout(parts.get(4)),
                                batchNorm(parts.get(5))));
        for (String unused : ENCODER_FIELDS) { // the encoder has parts of its own
            PrivateFields.write(encoder, ENCODER_TYPE, unused, null);
        }
        return PrivateFields.copy(block, encoder, AbstractBaseBlock.class);
    }

    /** Cuts the pairs of linear layers of a sequence, if they are pairs. */
    private static Block cutPairs(SequentialBlock sequence) {
        Map<Block, BlockStyle> pairs = LinearPairs.in(sequence, 1);
        BlockTree.childrenOf(sequence)
                .values()
                .replaceAll(child -> pairs.getOrDefault(child, REPLICATE).parallel(child));
        return sequence;
    }

    private static TransformerEncoderBlock plainEncoder(Block parallel) {
        Parts parts = ((ParallelTransformerEncoder) parallel).getParts();
        BlockTree.childrenOf((AbstractBlock) parts.feedForward())
                .values()
                .replaceAll(Styles::plainOf);
        List<Block> blocks =
                List.of(
                        plainAttention(parts.attention()),
                        plainDropout(parts.attentionDropout()),
                        plainOf(parts.attentionNorm()),
                        parts.feedForward(),
                        plainDropout(parts.feedForwardDropout()),
                        plainOf(parts.outputNorm()));
        TransformerEncoderBlock plain =
                new TransformerEncoderBlock(1, 1, 1, 0, Function.identity());
        List<Block> children = BlockTree.childrenOf(plain).values();
        for (int i = 0; i < blocks.size(); i++) {
            int child = children.indexOf(part(plain, ENCODER_FIELDS.get(i)));
            PrivateFields.write(plain, ENCODER_TYPE, ENCODER_FIELDS.get(i), blocks.get(i));
            if (child >= 0) { // its dropouts are in fields only
                children.set(child, blocks.get(i));
            }
        }
        return PrivateFields.copy(parallel, plain, AbstractBaseBlock.class);
    }

    // BertBlock

    private static boolean isBert(Block block) {
        return block.getClass() == BERT_TYPE
                && encodersOf(block).stream().allMatch(Styles::isEncoder);
    }

    /** Returns the list of encoders; a parallel one is a TransformerEncoderBlock, too. */
    private static List<Block> encodersOf(Block bert) {
        return PrivateFields.read(bert, BERT_TYPE, "transformerEncoderBlocks");
    }

    /**
     * Makes the encoders parallel. The dropout of the embeddings is in a field that can hold
     * nothing but DJL's, and becomes that of the input of the first encoder, which is the next
     * thing done to them.
     */
    private static Block bert(Block block) {
        List<Block> encoders = encodersOf(block);
        List<Block> children = BlockTree.childrenOf((AbstractBlock) block).values();
        Block dropout = embeddingDropout(block);
        float rate = rateOf(dropout);
        for (int i = 0; i < encoders.size(); i++) {
            ParallelDropout moved = null;
            if (i == 0 && rate > 0) {
                moved = dropout(dropout);
                PrivateFields.write(dropout, Dropout.class, "rate", 0f);
            }
            Block parallel = encoder(encoders.get(i), moved);
            children.set(children.indexOf(encoders.get(i)), parallel);
            encoders.set(i, parallel);
        }
        return block;
    }

    /** Gives the dropout of the embeddings back that the first encoder has got. */
    static void restoreDropout(Block bert) {
        Block first = encodersOf(bert).stream().findFirst().orElse(null);
        if (first instanceof ParallelTransformerEncoder) {
            ParallelDropout moved = ((ParallelTransformerEncoder) first).getParts().inputDropout();
            if (moved != null) {
                PrivateFields.write(embeddingDropout(bert), Dropout.class, "rate", moved.getRate());
            }
        }
    }

    private static Block embeddingDropout(Block bert) {
        return PrivateFields.read(bert, BERT_TYPE, "embeddingDropout");
    }

    // All of them

    /** Returns the number of heads of an attention, of an encoder, or the fewest of a BERT. */
    static int heads(Block block) {
        if (isAttention(block)) {
            return headsOfAttention(block);
        }
        return isEncoder(block)
                ? headsOfAttention(part(block, SELF_ATTENTION))
                : encodersOf(block).stream().mapToInt(Styles::heads).min().orElse(0);
    }

    /** Returns whether a block is one that a plan makes. */
    static boolean isParallel(Block block) {
        return PLAIN.containsKey(block.getClass());
    }

    /**
     * Returns DJL's block with the parameters of a parallel one.
     *
     * @param block a block
     * @return DJL's, or the block itself if it is not one that a plan makes
     */
    static Block plainOf(Block block) {
        return PLAIN.getOrDefault(block.getClass(), UnaryOperator.identity()).apply(block);
    }
}
