package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;

import io.djltp.bridge.RegionMappings;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.ShardedLayout;
import io.djltp.sharding.ShardingStrategy;

/**
 * A {@link Linear} layer whose output features are cut over the ranks: axis 0 of the weight.
 *
 * <pre>
 *            +---------+
 *            | W_0     |  rank 0        y_0 = x W_0^T + b_0
 *   x   @    +---------+           =
 *            | W_1     |  rank 1        y_1 = x W_1^T + b_1
 *            +---------+
 * </pre>
 *
 * <p>Shapes, on a rank that owns {@code units/p} of the output features (balanced ranges, so that
 * {@code units} need not be divisible by the number of ranks {@code p}):
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim], the same on all ranks; with {@code
 *       optBatchShardedInput} in MIXED mode this rank's part of axis 0
 *   <li>weight W: [units/p, input_dim] of the logical [units, input_dim]
 *   <li>bias b: [units/p] of the logical [units]
 *   <li>output Y: [x1, x2, ..., xn, units/p], or [x1, x2, ..., xn, units] with {@code
 *       optGatherOutput}
 * </ul>
 *
 * <p>An elementwise activation commutes with this cut, so that {@code column, activation, row}
 * needs no communication before the {@link RowParallelLinear}. Collectives: none forward (one
 * all-gather with {@code optGatherOutput}), one all-reduce of the input's gradient backward; with a
 * batch-sharded input one all-gather forward and one reduce-scatter backward.
 *
 * <p>Under an ordinary parameter store, such as that of DJL's own trainer or of a predictor, it is
 * the unsharded layer, and it saves and loads what an ordinary {@link Linear} does.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>), there column parallel after the
 * transposed weight; MAX calls the cut of the weight {@code rowwise}.
 */
public class ColumnParallelLinear extends AbstractParallelLinear {

    private final boolean gatherOutput;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    protected ColumnParallelLinear(Builder builder) {
        super(builder);
        gatherOutput = builder.gatherOutput;
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return ShardingStrategy.rowwise();
    }

    /** {@inheritDoc} */
    @Override
    long inputFeatures(ParallelContext context) {
        return weight().getShape().get(1);
    }

    /** {@inheritDoc} */
    @Override
    boolean hasPartialInputGradient() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardRank(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            NDArray bias) {
        RegionMappings mappings = context.getMappings(this);
        NDArray y; // [.., in] @ [in, units/p]
        if (mappings.canOverlap(input, weight)) {
            y = mappings.columnLinear(input, weight, bias, gathered);
        } else {
            // the gradient of a gathered input is reduced where it is scattered
            NDArray x = gathered ? input : mappings.copyToRegion(input, true);
            y = linear(x, weight, bias).singletonOrThrow();
        }
        long units = weight().getShape().get(0);
        if (gatherOutput) {
            return mappings.gatherFromRegion(y, units);
        }
        context.setLayout(y, new ShardedLayout(units));
        return y;
    }

    /**
     * Creates a builder to build a {@code ColumnParallelLinear}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ColumnParallelLinear}. */
    public static class Builder extends AbstractParallelLinear.Builder<Builder> {

        private boolean gatherOutput;

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets whether every rank gets the whole output. Default: false, each keeps its slice of
         * the last axis.
         *
         * @param gatherOutput whether the output is gathered
         * @return this builder
         */
        public Builder optGatherOutput(boolean gatherOutput) {
            this.gatherOutput = gatherOutput;
            return this;
        }

        /**
         * Builds the layer.
         *
         * @return the layer
         */
        @Override
        public ColumnParallelLinear build() {
            checkUnits();
            return new ColumnParallelLinear(this);
        }
    }
}
