package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastMappings;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

/**
 * A {@link Linear} layer whose input features are cut over the ranks: axis 1 of the weight.
 *
 * <pre>
 *                    +-----+-----+
 *   [ x_0 | x_1 ]  @ | W_0 | W_1 |   =   x_0 W_0^T + x_1 W_1^T + b
 *                    +-----+-----+       rank 0      rank 1      once
 * </pre>
 *
 * <p>Shapes, on a rank that owns {@code input_dim/p} of the input features (balanced ranges unless
 * {@code optShardingStrategy} says otherwise, so that {@code input_dim} need not be divisible by
 * the number of ranks {@code p}):
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim/p], this rank's slice of the last axis, such as a
 *       {@link ColumnParallelLinear} leaves it; with {@code optInputIsParallel(false)} the whole
 *       [x1, x2, ..., xn, input_dim], of which the layer takes the slice
 *   <li>weight W: [units, input_dim/p] of the logical [units, input_dim]
 *   <li>bias b: [units], the same on all ranks, added once, after the reduction
 *   <li>output Y: [x1, x2, ..., xn, units], the same on all ranks; with {@code
 *       optBatchShardedOutput} in MIXED mode this rank's part of axis 0; with {@code
 *       optSequenceParallel} this rank's part of the tokens, axis 1, or axis 0 of two
 * </ul>
 *
 * <p>The ranks' products are summands: an activation does not commute with this cut and must come
 * after the layer. Collectives: one all-reduce of the output forward, none backward; with {@code
 * optInputIsParallel(false)} one all-gather of the input's gradient backward; with a batch-sharded
 * or sequence-parallel output one reduce-scatter forward and one all-gather backward.
 *
 * <p>Under an ordinary parameter store, such as that of DJL's own trainer or of a predictor, it is
 * the unsharded layer, and it saves and loads what an ordinary {@link Linear} does.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>), there row parallel after the
 * transposed weight; MAX calls the cut of the weight {@code columnwise}.
 */
public class RowParallelLinear extends AbstractParallelLinear {

    private final boolean inputIsParallel;
    private final boolean batchShardedOutput;
    private final boolean sequenceParallel;
    private final ShardingStrategy shardingStrategy;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    protected RowParallelLinear(Builder builder) {
        super(builder);
        inputIsParallel = builder.inputIsParallel;
        batchShardedOutput = builder.batchShardedOutput;
        sequenceParallel = builder.sequenceParallel;
        ShardingStrategy strategy = builder.strategy(1, "RowParallelLinear");
        shardingStrategy = ShardingStrategy.withoutReplicas(strategy); // the products are summed
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return parameter == bias() ? ShardingStrategy.replicate() : shardingStrategy;
    }

    /** {@inheritDoc} */
    @Override
    @Nullable Cut inputCut(ParallelContext context) {
        return inputIsParallel ? featureCut(context) : null;
    }

    /** Returns which input features each rank has. */
    private Cut featureCut(ParallelContext context) {
        int size = context.getTensorGroup().getSize();
        return shardingStrategy.cut(weight().getShape(), size);
    }

    /** {@inheritDoc} */
    @Override
    boolean takesSlice() {
        return inputIsParallel;
    }

    /** {@inheritDoc} */
    @Override
    boolean cutsInputs() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    boolean hasPartialInputGradient() {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardRank(
            RankParameterStore store,
            NDArray input,
            boolean gathered,
            NDArray weight,
            @Nullable NDArray bias,
            boolean training) {
        ParallelContext context = store.getContext();
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(this);
        NDArray slice = input;
        if (!inputIsParallel) {
            Cut cut = featureCut(context);
            NDArray own = mappings.scatterToRegion(input, cut);
            slice = pass.enterSlice(own, new ShardedLayout(cut), "RowParallelLinear");
        }
        pass.use(weight(), pass.regionOf(input));
        NDArray y = product().of(pass.take(slice), weight, null); // [.., in/p] @ [in/p, units]
        y = adapted(store, y, slice, training);
        if (batchShardedOutput && pass.isOverlaid()) {
            long rows = y.getShape().get(0);
            Cut own = pass.getRowCut(context.getDataGroup().getSize(), rows);
            y = mappings.reduceScatterToSequenceRegion(y, own);
            y = pass.enterScattered(y, rows);
        } else if (sequenceParallel) {
            y = SequenceRegion.reduceScatter(context, this, y);
        } else {
            y = mappings.reduceFromRegion(y, true);
            y = pass.enter(y, Features.REPLICATED);
        }
        pass.use(bias(), pass.regionOf(y));
        return bias == null ? y : y.addi(bias);
    }

    /**
     * {@inheritDoc}
     *
     * <p>The slice of the features ends at the product.
     */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        ForecastArray x = forecastInput(pass, input);
        if (pass.getTensorSize() == 1) {
            pass.use(this, x);
            forecastLora(pass, x);
            return forecastOutput(x);
        }
        ForecastMappings mappings = pass.getMappings(this);
        if (!inputIsParallel) {
            Cut cut = shardingStrategy.cut(weight().getShape(), pass.getTensorSize());
            x = mappings.scatterToRegion(x, cut);
        }
        pass.use(weight(), x);
        forecastLora(pass, x);
        ForecastArray y =
                x.withFeatures(weight().getShape().get(0))
                        .with(hasLora() || weight().requiresGradient());
        if (batchShardedOutput && pass.getMesh().isOverlaid()) {
            y = mappings.reduceScatterToSequenceRegion(y);
        } else if (sequenceParallel) {
            y = mappings.reduceScatterTokens(y);
        } else {
            y = mappings.reduceFromRegion(y);
        }
        pass.use(bias(), y);
        return bias() == null ? y : y.with(bias().requiresGradient());
    }

    /**
     * Creates a builder to build a {@code RowParallelLinear}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link RowParallelLinear}. */
    public static class Builder extends AbstractParallelLinear.Builder<Builder> {

        private boolean inputIsParallel = true;
        private boolean batchShardedOutput;
        private boolean sequenceParallel;

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets whether the input is this rank's slice of the features already. Default: true.
         *
         * @param inputIsParallel whether the input is cut over the ranks
         * @return this builder
         */
        public Builder optInputIsParallel(boolean inputIsParallel) {
            this.inputIsParallel = inputIsParallel;
            return this;
        }

        /**
         * Sets whether the output is cut over the batch in MIXED mode: what follows the layer is
         * data parallel again. In the other modes this has no effect. Default: false.
         *
         * @param batchShardedOutput whether the output is cut over the batch
         * @return this builder
         */
        public Builder optBatchShardedOutput(boolean batchShardedOutput) {
            this.batchShardedOutput = batchShardedOutput;
            return this;
        }

        /**
         * Sets whether the bias is left to who takes the output, as in Megatron-LM: the output is
         * without it, and the bias, [units], to be added once, to the sum, is a second one.
         * Default: false.
         *
         * @param skipBiasAdd whether the bias is returned, and not added
         * @return this builder
         */
        public Builder optSkipBiasAdd(boolean skipBiasAdd) {
            this.skipBiasAdd = skipBiasAdd;
            return this;
        }

        /**
         * Sets whether the tokens of the output are cut over the tensor-parallel ranks: what
         * follows the layer is computed of a rank's tokens. With one tensor-parallel rank this has
         * no effect. Default: false.
         *
         * @param sequenceParallel whether the output is cut, see {@link SequenceScatter}
         * @return this builder
         */
        public Builder optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return this;
        }

        /**
         * Builds the layer.
         *
         * @return the layer
         */
        @Override
        public RowParallelLinear build() {
            checkUnits();
            Errors.check(
                    !(batchShardedInput && inputIsParallel),
                    "An input that is cut over the batch is whole over the features: set"
                            + " optInputIsParallel(false)");
            return new RowParallelLinear(this);
        }
    }
}
