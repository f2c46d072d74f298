package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DropoutMask;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.Recompute;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.attention.AttentionShape.LocalHeads;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * Attention whose heads are cut over the ranks. Head h of H, with the key/value head that it uses:
 * {@code softmax(q_h k_h^T / sqrt(d)) v_h}; all heads together are multiplied by the output weight.
 *
 * <pre>
 *        query, key, value: columns                  output: rows
 *   x  --->  heads 0, 1, 2  --->  attention of these --->  W_0 \
 *   x  --->  heads 3, 4     --->  attention of these --->  W_1 / all-reduce --> y
 * </pre>
 *
 * <ul>
 *   <li>inputs: x [B, T, D], and optionally a mask [B, T] or [B, T, T]; with {@code
 *       optCrossAttention} x [B, T, D], memory [B, S, M], and optionally a mask [B, S] or [B, T,
 *       S]. A mask is not 0 where a key is seen, and of floating point numbers 1; other numbers
 *       throw {@link IllegalArgumentException}, but on a GPU. A query that sees no key has the
 *       result 0 (before the output projection). All are the same on all ranks of the
 *       tensor-parallel group
 *   <li>beside the mask, or in its place, a bias that is added to the scores, [1 or B, 1 or H, 1 or
 *       T, S], floating point numbers; -infinity where a key is not seen. A rank takes its heads of
 *       it. Its gradient, if it has one, is one more all-reduce
 *   <li>weights, over all ranks: query [H d, D], key and value [Hkv d, D or M], or all three
 *       stacked in queryKeyValue [(H + 2 Hkv) d, D]; output [embedding, H d]
 *   <li>output: [B, T, embedding], the same on all ranks
 * </ul>
 *
 * <p>Rank r has the query heads balanced(H, r), any number of one or more, and the key/value heads
 * that they use: query head h uses key/value head floor(h Hkv / H). One that query heads of several
 * ranks use is on each of these, and its gradient is summed over them. Collectives: one all-reduce
 * forward, and one backward of the gradient of x (with cross-attention one more, of the memory's).
 * With {@code optSequenceParallel} each is a reduce-scatter and an all-gather: x and output are a
 * rank's tokens.
 *
 * <p>Under an ordinary parameter store it is the unsharded block, and is saved as such.
 *
 * <p>Vaswani et al., 2017, <a href="https://arxiv.org/abs/1706.03762">arXiv:1706.03762</a>; grouped
 * queries: Ainslie et al., 2023, <a href="https://arxiv.org/abs/2305.13245">arXiv:2305.13245</a>;
 * cut by heads as in Megatron-LM, <a href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>.
 */
public class ParallelMultiHeadAttention extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final AttentionShape shape;
    private final boolean crossed;
    private final boolean causal;
    private final int window; // or 0
    private final boolean recomputed;
    private final @Nullable RotaryEmbedding rotary;
    private final @Nullable ColumnParallelLinear stacked; // query, key and value in one
    private final @Nullable Projections apart;
    private final @Nullable RmsNorm queryNorm; // of the features of a head
    private final @Nullable RmsNorm keyNorm;
    private final @Nullable ParallelDropout dropout; // of the weights of the keys
    private final RowParallelLinear output;

    /**
     * Creates a block.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the children are complete
    protected ParallelMultiHeadAttention(Builder builder) {
        super(VERSION);
        shape = builder.shape();
        crossed = builder.crossAttention;
        causal = builder.causal;
        window = builder.window;
        recomputed = builder.recomputeCore;
        rotary = builder.rotary;
        int heads = shape.heads();
        int groups = shape.keyValueHeads();
        long dim = shape.headDim();
        if (builder.fusedQkv) {
            ShardingStrategy all = ShardingStrategy.stackedQkv(heads, groups, dim);
            stacked = projection("queryKeyValue", heads + 2 * groups, all, builder);
            apart = null;
        } else {
            ShardingStrategy own = ShardingStrategy.headAwareRowwise(heads, dim);
            ShardingStrategy used = ShardingStrategy.keyValueRowwise(heads, groups, dim);
            stacked = null;
            apart =
                    new Projections(
                            projection("query", heads, own, builder),
                            projection("key", groups, used, builder),
                            projection("value", groups, used, builder));
        }
        queryNorm = norm("queryNorm", builder);
        keyNorm = norm("keyNorm", builder);
        dropout =
                builder.dropoutRate == 0
                        ? null
                        : addChildBlock(
                                "dropout",
                                ParallelDropout.builder().optRate(builder.dropoutRate).build());
        output =
                addChildBlock(
                        "output",
                        RowParallelLinear.builder()
                                .setUnits(shape.embedding())
                                .optBias(builder.outputBias)
                                .optPrecision(builder.precision)
                                .optShardingStrategy(shape.outputStrategy())
                                .optSequenceParallel(builder.sequenceParallel)
                                .build());
    }

    /** Query, key and value where each is a layer of its own. */
    private record Projections(
            ColumnParallelLinear query, ColumnParallelLinear key, ColumnParallelLinear value) {}

    private Projections apart() {
        if (apart == null) {
            throw new IllegalStateException("Query, key and value are one layer");
        }
        return apart;
    }

    private ColumnParallelLinear projection(
            String name, int heads, ShardingStrategy strategy, Builder builder) {
        return addChildBlock(
                name,
                ColumnParallelLinear.builder()
                        .setUnits(heads * shape.headDim())
                        .optBias(builder.bias)
                        .optPrecision(builder.precision)
                        .optShardingStrategy(strategy)
                        .optSequenceParallel(builder.sequenceParallel)
                        .build());
    }

    private @Nullable RmsNorm norm(String name, Builder builder) {
        return builder.normEpsilon == 0
                ? null
                : addChildBlock(name, RmsNorm.builder().optEpsilon(builder.normEpsilon).build());
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        checkInputs(inputs.getShapes());
        ParallelContext context = RankParameterStore.contextOf(store);
        NDList heads = project(store, inputs, training);
        heads.set(0, positioned(store, queryNorm, heads.get(0), training));
        heads.set(1, positioned(store, keyNorm, heads.get(1), training));
        NDList others = inputs.subNDList(keys() + 1);
        heads.addAll(AttentionMask.ofRank(context, this, shape, others));
        NDArray values =
                recomputed
                        ? Recompute.part(
                                store,
                                heads,
                                training,
                                "A " + describe() + " with optRecomputeCore(true)",
                                arrays -> attend(store, arrays, training))
                        : attend(store, heads, training);
        int ranks = AttentionShape.ranks(context);
        if (context != null && ranks > 1) {
            ShardedLayout layout = new ShardedLayout(shape.featureCut(ranks));
            values = context.getPass().enterSlice(values, layout, describe());
        }
        return output.forward(store, new NDList(values), training);
    }

    /** Computes queries, keys and values of the rank's heads, [B, T, heads, d] each. */
    private NDList project(ParameterStore store, NDList inputs, boolean training) {
        if (stacked != null) {
            LocalHeads local = shape.localHeads(RankParameterStore.contextOf(store));
            NDArray all = heads(store, stacked, inputs.head(), training);
            int queries = local.queries();
            return all.split(new long[] {queries, queries + local.keyValues()}, 2);
        }
        Projections each = apart();
        NDArray x = each.query.shareInput(store, inputs.head());
        NDArray memory = crossed ? each.key.shareInput(store, inputs.get(1)) : x;
        return new NDList(
                heads(store, each.query, x, training),
                heads(store, each.key, memory, training),
                heads(store, each.value, memory, training));
    }

    /** Computes a projection, and takes the rank's slice of it as heads. */
    private NDArray heads(
            ParameterStore store, ColumnParallelLinear layer, NDArray input, boolean training) {
        NDArray y = layer.computeForBlock(store, input, training, describe());
        Shape all = y.getShape();
        long dim = shape.headDim();
        return y.reshape(all.get(0), all.get(1), all.get(2) / dim, dim);
    }

    private NDArray positioned(
            ParameterStore store, @Nullable RmsNorm norm, NDArray heads, boolean training) {
        NDArray x = heads;
        if (norm != null) {
            x = norm.forward(store, new NDList(x), training).singletonOrThrow();
        }
        return rotary == null ? x : rotary.apply(x);
    }

    /**
     * Computes softmax(q k^T / sqrt(d)) v, each head for itself.
     *
     * @param store the parameters, which know the rank
     * @param inputs queries, keys and values, and what the user gave: a mask, a bias of the scores
     * @param training whether weights are dropped
     * @return the weighted values of all heads side by side, [B, T, heads d]
     */
    private NDArray attend(ParameterStore store, NDList inputs, boolean training) {
        ParallelContext context = RankParameterStore.contextOf(store);
        LocalHeads local = shape.localHeads(context);
        NDArray q = inputs.get(0).transpose(0, 2, 1, 3); // [B, heads, T, d]
        NDArray k = local.expand(inputs.get(1)).transpose(0, 2, 1, 3); // [B, heads, S, d]
        NDArray v = local.expand(inputs.get(2)).transpose(0, 2, 1, 3);
        NDList given = inputs.subNDList(3);
        given.forEach(each -> AttentionMask.check(context, each));
        AttentionMask mask = AttentionMask.of(given, causal, window, q, k.getShape().get(2));
        NDArray values =
                training && dropout != null
                        ? dropped(store, dropout, mask, q, k).matMul(v)
                        : TorchOperations.attention(q, k, v, mask.bias(), mask.isCausalOnly());
        Shape all = values.getShape();
        return mask.clear(values)
                .transpose(0, 2, 1, 3)
                .reshape(all.get(0), all.get(2), all.get(1) * all.get(3));
    }

    /** Computes the weights of the keys, with some of them set to 0: [B, heads, T, S]. */
    private NDArray dropped(
            ParameterStore store, ParallelDropout drop, AttentionMask mask, NDArray q, NDArray k) {
        // a number that libtorch keeps for the backward pass, so that it is an array of the pass
        NDArray scale = q.getManager().create((float) (1 / Math.sqrt(shape.headDim())));
        NDArray scaled = q.mul(scale.toType(q.getDataType(), false));
        NDArray scores = mask.addTo(scaled.matMul(k.transpose(0, 1, 3, 2)));
        NDArray weights = scores.softmax(-1);
        Shape each = weights.getShape();
        NDArray rows = weights.reshape(each.get(0), each.get(1) * each.get(2) * each.get(3));
        ParallelContext context = RankParameterStore.contextOf(store);
        int ranks = AttentionShape.ranks(context);
        if (context != null
                && ranks > 1) { // a row is made of heads: its cut says which of all weights these
            // are
            Cut cut = AxisPart.heads(shape.heads(), each.get(2) * each.get(3)).cut(ranks);
            context.getPass().setLayout(rows, new ShardedLayout(cut));
        }
        NDArray kept = drop.forward(store, new NDList(rows), true).singletonOrThrow();
        return (context == null ? kept : context.getPass().take(kept)).reshape(each);
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        Errors.check(
                inputs.size() > keys(),
                "%s attends to a second input, the memory, which its forecast is not given: let"
                        + " the block around it be a ForecastBlock, and pass both to"
                        + " PassForecast.visit",
                describe());
        ForecastArray projected;
        if (stacked != null) {
            projected = pass.visit(stacked, inputs.get(0));
        } else {
            Projections each = apart();
            ForecastArray x = each.query.forecastShare(pass, inputs.get(0));
            ForecastArray memory = crossed ? each.key.forecastShare(pass, inputs.get(1)) : x;
            boolean trained = each.key.forecastShared(pass, memory).differentiated();
            trained |= each.value.forecastShared(pass, memory).differentiated();
            projected = each.query.forecastShared(pass, x).with(trained);
        }
        int ranks = pass.getTensorSize();
        ForecastArray heads = projected.withFeatures(shape.heads() * shape.headDim());
        heads = ranks == 1 ? heads : heads.cutBy(shape.featureCut(ranks));
        if (queryNorm != null) {
            heads = heads.with(pass.visit(queryNorm, heads).differentiated());
        }
        if (keyNorm != null) {
            heads = heads.with(pass.visit(keyNorm, heads).differentiated());
        }
        return pass.visit(output, heads);
    }

    /**
     * Returns whether a position sees those up to its own only.
     *
     * @return whether {@code optCausal} was set
     */
    public boolean isCausal() {
        return causal;
    }

    /**
     * Returns how many positions a position sees at most.
     *
     * @return what {@code optWindow} has set, or 0 for all
     */
    public int getWindow() {
        return window;
    }

    /**
     * Returns what turns queries and keys.
     *
     * @return the positions, or {@code null} if there are none
     */
    public @Nullable RotaryEmbedding getRotary() {
        return rotary;
    }

    /**
     * Returns whether keys and values are made of a second input.
     *
     * @return whether {@code optCrossAttention} was set
     */
    public boolean isCrossAttention() {
        return crossed;
    }

    /** Returns the place of the input that keys and values are made of. */
    private int keys() {
        return crossed ? 1 : 0;
    }

    private String describe() {
        return "ParallelMultiHeadAttention of " + shape.heads() + " heads";
    }

    private void checkInputs(Shape... inputs) {
        int least = keys() + 1;
        boolean fits = inputs.length >= least && inputs.length <= least + 2;
        if (fits && inputs.length == least + 2) { // of a mask and a bias one each
            int mask = inputs[least].dimension();
            int bias = inputs[least + 1].dimension();
            fits = (mask == 4) != (bias == 4);
        }
        for (int i = 0; fits && i < least; i++) {
            fits = inputs[i].dimension() == 3 && inputs[i].get(0) == inputs[0].get(0);
        }
        if (!fits) {
            throw Errors.argument(
                    "%s takes x [B, T, D]%s, and optionally a mask [B, S] or [B, T, S] and a bias"
                            + " of"
                            + " the scores [1 or B, 1 or heads, 1 or T, S], but gets %s",
                    describe(), crossed ? ", memory [B, S, M]" : "", Arrays.toString(inputs));
        }
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {
            new Shape(inputShapes[0].get(0), inputShapes[0].get(1), shape.embedding())
        };
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        checkInputs(inputShapes);
        Shape x = inputShapes[0];
        Shape head = new Shape(x.get(0), x.get(1), shape.heads(), shape.headDim());
        Map<Block, Shape> shapes = new LinkedHashMap<>();
        if (apart == null) {
            shapes.put(stacked, x);
        } else {
            shapes.put(apart.query, x);
            shapes.put(apart.key, inputShapes[keys()]);
            shapes.put(apart.value, inputShapes[keys()]);
        }
        shapes.put(queryNorm, head);
        shapes.put(keyNorm, head);
        shapes.put(dropout, head);
        shapes.put(output, new Shape(x.get(0), x.get(1), shape.heads() * shape.headDim()));
        shapes.remove(null);
        shapes.forEach((block, input) -> block.initialize(manager, dataType, input));
    }

    /**
     * Creates a builder to build a {@code ParallelMultiHeadAttention}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ParallelMultiHeadAttention}. */
    public static class Builder {

        private long embedding;
        private int heads;
        private int keyValueHeads;
        private long headDim;
        private boolean bias = true;
        private boolean outputBias = true;
        private boolean causal;
        private int window;
        private boolean fusedQkv;
        private boolean crossAttention;
        private boolean sequenceParallel;
        private boolean recomputeCore;
        private @Nullable RotaryEmbedding rotary;
        private Precision precision = Precision.FLOAT32;
        private float dropoutRate;
        private float normEpsilon;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Sets the features of the output, and without {@code optHeadDim} those of all heads
         * together.
         *
         * @param embedding the number of features
         * @return this builder
         */
        public Builder setEmbeddingSize(long embedding) {
            this.embedding = embedding;
            return this;
        }

        /**
         * Sets the number of query heads, which need not be divisible by that of the ranks.
         *
         * @param heads the number of heads
         * @return this builder
         */
        public Builder setHeads(int heads) {
            this.heads = heads;
            return this;
        }

        /**
         * Sets the number of key/value heads (grouped-query attention; 1: multi-query). Default:
         * that of the query heads.
         *
         * @param keyValueHeads a divisor of the number of query heads
         * @return this builder
         */
        public Builder optKeyValueHeads(int keyValueHeads) {
            Errors.check(
                    keyValueHeads > 0, "Key/value heads must be 1 or more, not %s", keyValueHeads);
            this.keyValueHeads = keyValueHeads;
            return this;
        }

        /**
         * Sets the features of a head. Default: those of the embedding, divided by the heads.
         *
         * @param headDim the number of features
         * @return this builder
         */
        public Builder optHeadDim(long headDim) {
            Errors.check(headDim > 0, "The features of a head must be 1 or more, not %s", headDim);
            this.headDim = headDim;
            return this;
        }

        /**
         * Sets whether the projections of queries, keys, values and the output have a bias.
         * Default: true.
         *
         * @param bias whether there is a bias
         * @return this builder
         */
        public Builder optBias(boolean bias) {
            this.bias = bias;
            outputBias = bias;
            return this;
        }

        /**
         * Sets whether the output projection has a bias, after {@link #optBias}. Default: as the
         * others.
         *
         * @param outputBias whether there is a bias
         * @return this builder
         */
        public Builder optOutputBias(boolean outputBias) {
            this.outputBias = outputBias;
            return this;
        }

        /**
         * Sets whether position t sees the positions 0 to t only, as in a decoder. Default: false.
         *
         * @param causal whether the future is masked
         * @return this builder
         */
        public Builder optCausal(boolean causal) {
            this.causal = causal;
            return this;
        }

        /**
         * Sets how many positions a position sees at most: itself and those just before it (the
         * sliding window of Mistral). Default: all that {@code optCausal} lets it see.
         *
         * @param positions the number of positions, or 0 for all
         * @return this builder
         */
        public Builder optWindow(int positions) {
            Errors.check(
                    positions >= 0,
                    "A window of attention has 1 position or more, or 0 for all, not %s",
                    positions);
            window = positions;
            return this;
        }

        /**
         * Sets rotary positions of queries and keys. Default: none.
         *
         * @param rotary the positions
         * @return this builder
         */
        public Builder optRotary(RotaryEmbedding rotary) {
            this.rotary = rotary;
            return this;
        }

        /**
         * Sets with what probability the weight of a key is set to 0 in training, by a {@link
         * ParallelDropout}: the result does not depend on the number of ranks. Default: 0.
         *
         * @param rate the probability, from 0 to 1
         * @return this builder
         */
        public Builder optDropout(float rate) {
            dropoutRate = DropoutMask.checkRate(rate);
            return this;
        }

        /**
         * Sets whether queries, keys and values have one weight, in which they are stacked in this
         * order, and are one matrix product. Default: false, three weights. The communication is
         * the same.
         *
         * @param fusedQkv whether they are stacked
         * @return this builder
         */
        public Builder optFusedQkv(boolean fusedQkv) {
            this.fusedQkv = fusedQkv;
            return this;
        }

        /**
         * Sets whether keys and values are made of a second input, such as the output of an
         * encoder. Default: false.
         *
         * @param crossAttention whether there is a second input
         * @return this builder
         */
        public Builder optCrossAttention(boolean crossAttention) {
            this.crossAttention = crossAttention;
            return this;
        }

        /**
         * Sets that each head's queries and keys are normalized by an {@link RmsNorm} over the
         * features of the head, before they are rotated. Default: not.
         *
         * @param epsilon what is added to the mean of the squares, such as 1e-6
         * @return this builder
         */
        public Builder optQueryKeyNorm(float epsilon) {
            Errors.check(
                    epsilon > 0, "The epsilon of a normalization must be above 0, not %s", epsilon);
            normEpsilon = epsilon;
            return this;
        }

        /**
         * Sets whether the tokens of x (and memory) and of the output are cut over the
         * tensor-parallel ranks, as a {@link io.djltp.nn.SequenceScatter} leaves them: the block
         * gathers them, computes its heads of all, and scatters the sum. Masks are of all tokens.
         * With one tensor-parallel rank this has no effect. Default: false.
         *
         * @param sequenceParallel whether the tokens are cut
         * @return this builder
         */
        public Builder optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return this;
        }

        /**
         * Sets whether the weights of the keys are dropped in training and computed again, from
         * queries and keys, in the backward pass: Megatron-LM's selective recomputation
         * (Korthikanti et al., 2022, <a
         * href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>). Nothing is communicated
         * again. Of use with {@link #optDropout}: without it libtorch's kernel keeps no weights
         * anyway. Default: false.
         *
         * @param recomputeCore whether they are computed again
         * @return this builder
         */
        public Builder optRecomputeCore(boolean recomputeCore) {
            this.recomputeCore = recomputeCore;
            return this;
        }

        /**
         * Sets the precision of the products of the projections: to queries, keys and values, and
         * of the output. Scores, softmax and weighted values are float32 in any. Default: float32.
         *
         * @param precision float32 or bfloat16
         * @return this builder
         */
        public Builder optPrecision(Precision precision) {
            this.precision = Objects.requireNonNull(precision, "precision");
            return this;
        }

        private AttentionShape shape() {
            return AttentionShape.of(embedding, heads, keyValueHeads, headDim);
        }

        /**
         * Builds the block.
         *
         * @return the block
         * @throws IllegalArgumentException if the numbers of heads and features do not fit
         */
        public ParallelMultiHeadAttention build() {
            Errors.check(
                    !(crossAttention && causal),
                    "Cross-attention cannot be causal: positions of two sequences have no order");
            Errors.check(
                    !(crossAttention && fusedQkv),
                    "With cross-attention queries are made of another input than keys and values,"
                            + " and cannot be stacked with them: leave optFusedQkv out");
            Errors.check(
                    !(crossAttention && rotary != null),
                    "Cross-attention has no rotary positions: those of two sequences have no"
                            + " distance");
            Errors.check(
                    window == 0 || causal,
                    "A window of attention is of the positions before: build it with"
                            + " optCausal(true)");
            if (rotary != null) {
                rotary.check(shape().headDim());
            }
            return new ParallelMultiHeadAttention(this);
        }
    }
}
