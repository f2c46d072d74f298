package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import ai.djl.util.Preconditions;

import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.layout.ShardedLayout;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.parameters.WeightSource;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;

import java.io.DataOutputStream;
import java.io.IOException;

/**
 * What column- and row-parallel layers share: they are DJL's {@link Linear} in everything but the
 * forward pass of a rank, and in particular in what they save.
 */
abstract class AbstractParallelLinear extends Linear implements ShardedBlock {

    private final boolean batchShardedInput;
    private WeightSource weightSource;

    AbstractParallelLinear(Builder<?> builder) {
        super(builder);
        batchShardedInput = builder.batchShardedInput;
    }

    /**
     * Computes the rank's part.
     *
     * @param context the rank, one of several
     * @param input the input, whole over the batch
     * @param gathered whether {@code input} was just gathered from all ranks
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard or replica of the bias, or {@code null}
     * @return the output
     */
    abstract NDArray forwardRank(
            ParallelContext context, NDArray input, boolean gathered, NDArray weight, NDArray bias);

    /**
     * Returns the length that the last axis of a rank's input must have.
     *
     * @param context the rank
     * @return the length
     */
    abstract long inputFeatures(ParallelContext context);

    /**
     * Returns whether a rank's input is its slice of the features.
     *
     * @return whether the input is not whole
     */
    boolean takesSlice() {
        return false;
    }

    /**
     * Returns whether each rank's gradient of the input is a summand, not the whole.
     *
     * @return whether the gradient is partial
     */
    abstract boolean hasPartialInputGradient();

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray input = inputs.singletonOrThrow();
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        if (context == null) {
            HeldParameters.checkWhole(weight(), getClass().getSimpleName());
        }
        NDArray weight = parameterStore.getValue(weight(), input.getDevice(), training);
        NDArray bias = parameterStore.getValue(bias(), input.getDevice(), training);
        boolean alone = context == null || context.getTensorGroup().getSize() == 1;
        boolean fused = context != null && isFused(context);
        if (alone && !fused) {
            checkInput(input, weight().getShape().get(1));
            return new NDList(forwardWhole(input, weight, bias));
        }
        boolean gather = !alone && checkRegion(context.getPass(), input);
        checkInput(input, inputFeatures(context));
        if (gather) {
            input = gatherBatch(context, input, weight, fused);
        }
        return new NDList(
                fused
                        ? forwardFused(context, input, gather, weight, bias, training)
                        : forwardRank(context, input, gather, weight, bias));
    }

    /**
     * Computes the unsharded layer.
     *
     * @param input the input
     * @param weight the whole weight
     * @param bias the whole bias, or {@code null}
     * @return the output
     */
    NDArray forwardWhole(NDArray input, NDArray weight, NDArray bias) {
        return linear(input, weight, bias).singletonOrThrow();
    }

    /**
     * Returns whether a rank leaves its output to the loss and the evaluators.
     *
     * @param context the rank
     * @return whether {@link #forwardFused} takes the place of {@link #forwardRank}
     */
    boolean isFused(ParallelContext context) {
        return false;
    }

    /**
     * Returns what the loss and the evaluators compute the rank's output from.
     *
     * @param context the rank
     * @param input the input, whole over the batch
     * @param gathered whether {@code input} was just gathered from all ranks
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param training whether the loss will be differentiated
     * @return the features, with a layout that says what they are
     */
    NDArray forwardFused(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            NDArray bias,
            boolean training) {
        throw new UnsupportedOperationException();
    }

    /** Returns the weight: [output features, input features] over all ranks. */
    Parameter weight() {
        return getDirectParameters().get("weight");
    }

    /** Returns the bias: [output features] over all ranks, or {@code null}. */
    Parameter bias() {
        return getDirectParameters().get("bias");
    }

    /** {@inheritDoc} */
    @Override
    public boolean isBatchShardedInput() {
        return batchShardedInput;
    }

    /** {@inheritDoc} */
    @Override
    public void setWeightSource(WeightSource source) {
        weightSource = source;
    }

    /**
     * {@inheritDoc}
     *
     * <p>Writes what an ordinary {@link Linear} writes. While ranks hold the shards, they are
     * gathered one parameter after another.
     */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        if (weightSource == null) {
            HeldParameters.checkWhole(weight(), "What is saved of " + getClass().getSimpleName());
            super.saveParameters(os);
            return;
        }
        os.write(version);
        saveMetadata(os);
        for (Parameter parameter : getDirectParameters().values()) {
            weightSource.gather(parameter);
            try {
                parameter.save(os);
            } finally {
                weightSource.release(parameter);
            }
        }
    }

    private void checkInput(NDArray input, long features) {
        Shape shape = input.getShape();
        if (shape.dimension() == 0 || shape.get(shape.dimension() - 1) != features) {
            throw new IllegalArgumentException(
                    getClass().getSimpleName()
                            + " with a weight of "
                            + weight().getShape()
                            + " over all ranks needs an input whose last axis has length "
                            + features
                            + " on this rank, but the input is "
                            + shape
                            + (takesSlice()
                                    ? ". It takes the slice of the features that a"
                                            + " ColumnParallelLinear leaves on each rank: what"
                                            + " comes between has to keep the slice, or heads that"
                                            + " the ranks divide. Else build the first with"
                                            + " optGatherOutput(true), and this layer with"
                                            + " optInputIsParallel(false)"
                                    : ""));
        }
    }

    /** Gathers the rows of all ranks; what the other ranks' rows get backward is scattered. */
    private NDArray gatherBatch(
            ParallelContext context, NDArray input, NDArray weight, boolean fused) {
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(this);
        // a rank without a row has computed another one's, which does not count
        NDArray rows = pass.getRows() == 0 ? input.get(new NDIndex().addSliceDim(0, 0)) : input;
        // a product that overlaps reduces the gradient itself
        boolean overlaps = !fused && mappings.canOverlap(rows, weight);
        boolean partial = hasPartialInputGradient() && !overlaps;
        NDArray whole = mappings.gatherFromSequenceRegion(rows, pass.getGlobalRows(), partial);
        return pass.enterGathered(whole, partial);
    }

    /**
     * Returns whether the batch has to be gathered, and refuses an input that the layer is not for.
     */
    private boolean checkRegion(ForwardPass pass, NDArray input) {
        Region region = pass.regionOf(input);
        ShardedLayout layout = pass.layoutOf(input);
        if (layout != null && layout.head() != null) {
            throw new IllegalArgumentException(
                    getClass().getSimpleName()
                            + " with a weight of "
                            + weight().getShape()
                            + " follows a layer with the weight "
                            + layout.head().getShape()
                            + ", a fused head whose logits are never computed: build that"
                            + " one with optFusedLoss(false)");
        }
        if (region.isShard() && !takesSlice()) {
            throw new IllegalArgumentException(
                    getClass().getSimpleName()
                            + " with a weight of "
                            + weight().getShape()
                            + " needs an input that is whole, and gets a slice of the features, "
                            + input.getShape()
                            + ": build the layer before it with optGatherOutput(true), or let a"
                            + " RowParallelLinear take the slice");
        }
        if (!region.isRowsCut() || !pass.isOverlaid()) {
            return false; // another layer has gathered the batch, or it may stay cut
        }
        if (!batchShardedInput) {
            throw new IllegalStateException(
                    getClass().getSimpleName()
                            + " gets the part "
                            + input.getShape()
                            + " of a batch of "
                            + pass.getGlobalRows()
                            + " in MIXED mode, but is cut over the ranks: build the first"
                            + " tensor-parallel layer with optBatchShardedInput(true), and join"
                            + " what branches off before that layer before it");
        }
        return true;
    }

    /**
     * What the builders of column- and row-parallel layers share.
     *
     * @param <T> the builder
     */
    public abstract static class Builder<T extends Builder<T>> extends Linear.Builder {

        private boolean batchShardedInput;
        private boolean withBias = true; // DJL's field is private

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Returns this builder.
         *
         * @return this builder
         */
        protected abstract T self();

        /** {@inheritDoc} */
        @Override
        public T setUnits(long units) {
            super.setUnits(units);
            return self();
        }

        /** {@inheritDoc} */
        @Override
        public T optBias(boolean bias) {
            super.optBias(bias);
            withBias = bias;
            return self();
        }

        /**
         * Sets whether the input is cut over the batch in MIXED mode: the layer is the first of the
         * tensor-parallel head, gathers the features of all ranks and scatters their gradients
         * back. In the other modes the input is never cut and this has no effect. Default: false.
         *
         * @param batchShardedInput whether the input is cut over the batch
         * @return this builder
         */
        public T optBatchShardedInput(boolean batchShardedInput) {
            this.batchShardedInput = batchShardedInput;
            return self();
        }

        /** Returns whether the input is cut over the batch. */
        boolean isBatchShardedInput() {
            return batchShardedInput;
        }

        /** Returns whether there is a bias. */
        boolean isWithBias() {
            return withBias;
        }

        /** Checks what every layer needs. */
        void checkUnits() {
            Preconditions.checkArgument(
                    units > 0, "The units of a layer must be 1 or more, not " + units);
        }
    }
}
