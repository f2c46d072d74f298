package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.PassForecast;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.layout.ShardedLayout;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.nn.RecomputedPart;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

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
    private final boolean recomputed;
    private final RotaryEmbedding rotary;
    private final HeadProjections projections;
    private final RmsNorm queryNorm; // of the features of a head, or null
    private final RmsNorm keyNorm;
    private final WeightedValues attention;
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
        recomputed = builder.recomputeCore;
        rotary = builder.rotary;
        projections = new HeadProjections(shape, builder);
        projections.getLayers().forEach(this::addChildBlock);
        queryNorm = builder.norm();
        keyNorm = builder.norm();
        if (queryNorm != null) {
            addChildBlock("queryNorm", queryNorm);
            addChildBlock("keyNorm", keyNorm);
        }
        attention = new WeightedValues(shape, causal, builder.dropout());
        attention.getDropout().ifPresent(block -> addChildBlock("dropout", block));
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

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        checkInputs(inputs.getShapes());
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        HeadProjections.Heads heads =
                projections.compute(parameterStore, inputs, training, describe());
        NDArray query = positioned(parameterStore, queryNorm, heads.query(), training);
        NDArray key = positioned(parameterStore, keyNorm, heads.key(), training);
        NDList all = new NDList(query, key, heads.value());
        NDList others = inputs.subNDList(keys() + 1);
        all.addAll(AttentionBias.ofRank(context, this, shape, others));
        NDArray values = attend(parameterStore, all, training);
        if (AttentionShape.ranks(context) > 1) {
            Cut cut = shape.featureCut(AttentionShape.ranks(context));
            ShardedLayout layout = new ShardedLayout(cut);
            values = context.getPass().enterSlice(values, layout, describe());
        }
        return output.forward(parameterStore, new NDList(values), training);
    }

    /** Computes the heads, or computes them again in the backward pass too. */
    private NDArray attend(ParameterStore store, NDList heads, boolean training) {
        return recomputed
                ? RecomputedPart.compute(
                        store,
                        heads,
                        training,
                        "A " + describe() + " with optRecomputeCore(true)",
                        arrays -> attention.compute(store, arrays, training))
                : attention.compute(store, heads, training);
    }

    private NDArray positioned(
            ParameterStore store, RmsNorm norm, NDArray heads, boolean training) {
        NDArray x = heads;
        if (norm != null) {
            x = norm.forward(store, new NDList(x), training).singletonOrThrow();
        }
        return rotary == null ? x : rotary.apply(x);
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return forecast(pass, List.of(input));
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, List<ForecastArray> inputs) {
        if (inputs.size() <= keys()) {
            throw new IllegalArgumentException(
                    describe()
                            + " attends to a second input, the memory, which its forecast is not"
                            + " given: let the block around it be a ForecastBlock, and pass both"
                            + " to PassForecast.visit");
        }
        ForecastArray heads = projections.forecast(pass, inputs.get(0), inputs.get(keys()));
        if (queryNorm != null) {
            heads = heads.with(pass.visit(queryNorm, heads).differentiated());
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
            throw new IllegalArgumentException(
                    describe()
                            + " takes x [B, T, D]"
                            + (crossed ? ", memory [B, S, M]" : "")
                            + ", and optionally a mask [B, S] or [B, T, S] and a bias of the"
                            + " scores [1 or B, 1 or heads, 1 or T, S], but gets "
                            + Arrays.toString(inputs));
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
        projections.initialize(manager, dataType, x, inputShapes[keys()]);
        Shape head = new Shape(x.get(0), x.get(1), shape.heads(), shape.headDim());
        if (queryNorm != null) {
            queryNorm.initialize(manager, dataType, head);
            keyNorm.initialize(manager, dataType, head);
        }
        attention.getDropout().ifPresent(block -> block.initialize(manager, dataType, head));
        Shape heads = new Shape(x.get(0), x.get(1), shape.heads() * shape.headDim());
        output.initialize(manager, dataType, heads);
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
    public static class Builder extends AttentionBuilder<Builder> {

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         * @throws IllegalArgumentException if the numbers of heads and features do not fit
         */
        public ParallelMultiHeadAttention build() {
            check();
            return new ParallelMultiHeadAttention(this);
        }
    }

    /**
     * The projections to queries, keys and values. Those of one input enter its region together, so
     * that its gradient is one all-reduce: the sum over the ranks of the sum over the projections.
     */
    private static final class HeadProjections {

        private final AttentionShape shape;
        private final boolean crossed;
        private final boolean bias;
        private final boolean sequenceParallel;
        private final Precision precision;
        private final Map<String, ColumnParallelLinear> layers = new LinkedHashMap<>();

        /**
         * Queries, keys and values of a rank's heads.
         *
         * @param query [B, T, heads, d]
         * @param key [B, S, key/value heads, d]
         * @param value [B, S, key/value heads, d]
         */
        record Heads(NDArray query, NDArray key, NDArray value) {}

        HeadProjections(AttentionShape shape, AttentionBuilder<?> builder) {
            this.shape = shape;
            crossed = builder.crossAttention;
            bias = builder.bias;
            sequenceParallel = builder.sequenceParallel;
            precision = builder.precision;
            int heads = shape.heads();
            int groups = shape.keyValueHeads();
            long dim = shape.headDim();
            if (builder.fusedQkv) {
                add("queryKeyValue", heads + 2 * groups, strategy(heads, groups, dim));
                return;
            }
            add("query", heads, ShardingStrategy.headAwareRowwise(heads, dim));
            ShardingStrategy used = ShardingStrategy.keyValueRowwise(heads, groups, dim);
            add("key", groups, used);
            add("value", groups, used);
        }

        private static ShardingStrategy strategy(int heads, int groups, long dim) {
            return ShardingStrategy.stackedQkv(heads, groups, dim);
        }

        private void add(String name, int heads, ShardingStrategy strategy) {
            layers.put(
                    name,
                    ColumnParallelLinear.builder()
                            .setUnits(heads * shape.headDim())
                            .optBias(bias)
                            .optPrecision(precision)
                            .optShardingStrategy(strategy)
                            .optSequenceParallel(sequenceParallel)
                            .build());
        }

        /** Returns the layers by name. */
        Map<String, ColumnParallelLinear> getLayers() {
            return layers;
        }

        /** Initializes the layers, for queries of one shape and keys of another. */
        void initialize(NDManager manager, DataType type, Shape queries, Shape keys) {
            layers.forEach(
                    (name, layer) ->
                            layer.initialize(
                                    manager, type, name.startsWith("query") ? queries : keys));
        }

        /**
         * Computes the rank's heads.
         *
         * @param store the rank's parameters, or all
         * @param inputs x, and with cross-attention the memory
         * @param training whether it is trained
         * @param block the block, for errors
         */
        Heads compute(ParameterStore store, NDList inputs, boolean training, String block) {
            ParallelContext context = RankParameterStore.contextOf(store);
            ColumnParallelLinear stacked = layers.get("queryKeyValue");
            if (stacked != null) {
                return split(context, forward(store, stacked, inputs.head(), training, block));
            }
            NDArray x = layers.get("query").shareInput(store, inputs.head());
            NDArray memory = crossed ? layers.get("key").shareInput(store, inputs.get(1)) : x;
            return new Heads(
                    forward(store, layers.get("query"), x, training, block),
                    forward(store, layers.get("key"), memory, training, block),
                    forward(store, layers.get("value"), memory, training, block));
        }

        /**
         * Notes what the projections will communicate: {@link #compute}.
         *
         * @param pass the pass of one rank
         * @param x the input of the queries
         * @param memory that of keys and values
         * @return the queries of the rank's heads side by side
         */
        ForecastArray forecast(PassForecast pass, ForecastArray x, ForecastArray memory) {
            ColumnParallelLinear stacked = layers.get("queryKeyValue");
            if (stacked != null) {
                return heads(pass, pass.visit(stacked, x));
            }
            ColumnParallelLinear key = layers.get("key");
            ForecastArray own = layers.get("query").forecastShare(pass, x);
            ForecastArray other = crossed ? key.forecastShare(pass, memory) : own;
            boolean trained = key.forecastShared(pass, other).differentiated();
            trained |= layers.get("value").forecastShared(pass, other).differentiated();
            return heads(pass, layers.get("query").forecastShared(pass, own)).with(trained);
        }

        private ForecastArray heads(PassForecast pass, ForecastArray projected) {
            ForecastArray heads = projected.withFeatures(shape.heads() * shape.headDim());
            int ranks = pass.getTensorSize();
            return ranks == 1 ? heads : heads.cutBy(shape.featureCut(ranks));
        }

        /** Computes a projection, and takes the rank's slice of it as heads. */
        private NDArray forward(
                ParameterStore store,
                ColumnParallelLinear layer,
                NDArray input,
                boolean training,
                String block) {
            NDArray y = layer.computeForBlock(store, input, training, block);
            Shape all = y.getShape();
            long dim = shape.headDim();
            return y.reshape(all.get(0), all.get(1), all.get(2) / dim, dim);
        }

        private Heads split(ParallelContext context, NDArray stacked) {
            LocalHeads local = shape.localHeads(context);
            int keys = local.queries() + local.keyValues();
            return new Heads(
                    heads(stacked, 0, local.queries()),
                    heads(stacked, local.queries(), keys),
                    heads(stacked, keys, keys + local.keyValues()));
        }

        private static NDArray heads(NDArray stacked, long from, long to) {
            return stacked.get(new NDIndex().addAllDim(2).addSliceDim(from, to));
        }
    }

    /**
     * What a rank's heads compute of their queries, keys and values: softmax(q k^T / sqrt(d)) v,
     * each head for itself.
     */
    private static final class WeightedValues {

        private final AttentionShape shape;
        private final boolean causal;
        private final ParallelDropout dropout; // of the weights, or null

        WeightedValues(AttentionShape shape, boolean causal, ParallelDropout dropout) {
            this.shape = shape;
            this.causal = causal;
            this.dropout = dropout;
        }

        Optional<ParallelDropout> getDropout() {
            return Optional.ofNullable(dropout);
        }

        /**
         * Computes the heads.
         *
         * @param store the parameters, which know the rank
         * @param inputs queries, keys and values, and what the user gave: a mask, a bias of the
         *     scores
         * @param training whether weights are dropped
         * @return the weighted values of all heads side by side, [B, T, heads d]
         */
        NDArray compute(ParameterStore store, NDList inputs, boolean training) {
            ParallelContext context = RankParameterStore.contextOf(store);
            LocalHeads local = shape.localHeads(context);
            NDArray query = inputs.get(0).transpose(0, 2, 1, 3); // [B, heads, T, d]
            NDArray key = local.expand(inputs.get(1)).transpose(0, 2, 1, 3); // [B, heads, S, d]
            NDArray value = local.expand(inputs.get(2)).transpose(0, 2, 1, 3);
            NDList given = inputs.subNDList(3);
            given.forEach(each -> AttentionMask.check(context, each));
            AttentionMask mask = AttentionMask.of(given, causal, query, key.getShape().get(2));
            NDArray values =
                    training && dropout != null
                            ? dropped(store, mask, query, key, value)
                            : TorchOperations.attention(
                                    query, key, value, mask.bias(), mask.isCausalOnly());
            Shape all = values.getShape();
            return mask.clear(values)
                    .transpose(0, 2, 1, 3)
                    .reshape(all.get(0), all.get(2), all.get(1) * all.get(3));
        }

        /** With some weights set to 0, which needs the weights themselves. */
        private NDArray dropped(
                ParameterStore store,
                AttentionMask mask,
                NDArray query,
                NDArray key,
                NDArray value) {
            // a number that libtorch keeps for the backward pass, so that it is an array of the
            // pass
            NDArray scale = query.getManager().create((float) (1 / Math.sqrt(shape.headDim())));
            NDArray scaled = query.mul(scale.toType(query.getDataType(), false));
            NDArray scores =
                    mask.addTo(scaled.matMul(key.transpose(0, 1, 3, 2))); // [B, heads, T, S]
            NDArray weights = scores.softmax(-1);
            Shape each = weights.getShape();
            NDArray rows = weights.reshape(each.get(0), each.get(1) * each.get(2) * each.get(3));
            ParallelContext context = RankParameterStore.contextOf(store);
            int ranks = AttentionShape.ranks(context);
            if (ranks > 1) { // a row is made of heads: its cut says which of all weights these are
                Cut cut = AxisPart.heads(shape.heads(), each.get(2) * each.get(3)).cut(ranks);
                context.getPass().setLayout(rows, new ShardedLayout(cut));
            }
            NDArray kept = dropout.forward(store, new NDList(rows), true).singletonOrThrow();
            return taken(context, kept).reshape(each).matMul(value);
        }

        private static NDArray taken(ParallelContext context, NDArray array) {
            return context == null ? array : context.getPass().take(array);
        }
    }
}
