package io.djltp.nn;

import ai.djl.nn.core.Linear;

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
 * <p>Shapes, on a rank that owns {@code units/p} of the output features (balanced ranges unless
 * {@code optShardingStrategy} says otherwise, so that {@code units} need not be divisible by the
 * number of ranks {@code p}):
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim], the same on all ranks; with {@code
 *       optBatchShardedInput} in MIXED mode this rank's part of axis 0; with {@code
 *       optSequenceParallel} this rank's part of the tokens, axis 1, or axis 0 of two
 *   <li>weight W: [units/p, input_dim] of the logical [units, input_dim]
 *   <li>bias b: [units/p] of the logical [units]
 *   <li>output Y: [x1, x2, ..., xn, units/p], or [x1, x2, ..., xn, units] with {@code
 *       optGatherOutput}
 * </ul>
 *
 * <p>An elementwise activation commutes with this cut, so that {@code column, activation, row}
 * needs no communication before the {@link RowParallelLinear}. Collectives: none forward (one
 * all-gather with {@code optGatherOutput}), one all-reduce of the input's gradient backward; with a
 * batch-sharded or sequence-parallel input one all-gather forward and one reduce-scatter backward.
 *
 * <p>Under an ordinary parameter store, such as that of DJL's own trainer or of a predictor, it is
 * the unsharded layer, and it saves and loads what an ordinary {@link Linear} does.
 *
 * <p>A last layer with many classes is better a {@link ClassificationHead}.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>), there column parallel after the
 * transposed weight; MAX calls the cut of the weight {@code rowwise}.
 */
public class ColumnParallelLinear extends AbstractColumnLinear {

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    protected ColumnParallelLinear(Builder builder) {
        super(builder, builder.gatherOutput, builder.sequenceParallel);
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
    public static class Builder extends AbstractColumnLinear.Builder<Builder> {

        private boolean gatherOutput;
        private boolean sequenceParallel;

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
         * Sets whether the bias is left to who takes the output, as in Megatron-LM: the output is
         * without it, and the bias, [units/p] like the slice, is a second one. Default: false.
         *
         * @param skipBiasAdd whether the bias is returned, and not added
         * @return this builder
         */
        public Builder optSkipBiasAdd(boolean skipBiasAdd) {
            this.skipBiasAdd = skipBiasAdd;
            return this;
        }

        /**
         * Sets whether the tokens of the input are cut over the tensor-parallel ranks: the layer
         * gathers them, and scatters their gradients back. An input that has all tokens is taken as
         * it is, so that with one tensor-parallel rank this has no effect. Default: false.
         *
         * @param sequenceParallel whether the layer gathers tokens, see {@link SequenceScatter}
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
        public ColumnParallelLinear build() {
            checkUnits();
            return new ColumnParallelLinear(this);
        }
    }
}
