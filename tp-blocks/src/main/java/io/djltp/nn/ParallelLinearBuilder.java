package io.djltp.nn;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.util.Preconditions;

import io.djltp.internal.torch.LinearProduct;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

/**
 * What the builders of column- and row-parallel layers share.
 *
 * @param <T> the builder
 */
public abstract class ParallelLinearBuilder<T extends ParallelLinearBuilder<T>>
        extends Linear.Builder {

    private boolean batchShardedInput;
    private boolean withBias = true; // DJL's field is private
    private boolean skipBiasAdd;
    private ShardingStrategy shardingStrategy; // or null: balanced
    private Precision precision = Precision.FLOAT32;

    /** Creates a builder. */
    protected ParallelLinearBuilder() {}

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
     * tensor-parallel head, gathers the features of all ranks and scatters their gradients back. In
     * the other modes the input is never cut and this has no effect. Default: false.
     *
     * @param batchShardedInput whether the input is cut over the batch
     * @return this builder
     */
    public T optBatchShardedInput(boolean batchShardedInput) {
        this.batchShardedInput = batchShardedInput;
        return self();
    }

    /**
     * Sets how the weight is cut over the ranks: for lengths of your choice, such as {@code
     * ShardingStrategy.rowwise(Cut.ofLengths(5, 3))}, or several ranges a rank. Default: balanced
     * ranges.
     *
     * @param shardingStrategy the strategy, which cuts the axis that the layer is named after: 0,
     *     the output features, of a column-parallel layer, and 1, the input features, of a
     *     row-parallel one
     * @return this builder
     */
    public T optShardingStrategy(ShardingStrategy shardingStrategy) {
        this.shardingStrategy = shardingStrategy;
        return self();
    }

    /**
     * Sets the precision of the layer's three products: forward, and of the gradients of input and
     * weight. Weights, inputs, outputs, gradients and the update are float32 in any, see {@link
     * io.djltp.internal.torch.LinearProduct}. Default: {@link Precision#FLOAT32}.
     *
     * @param precision float32, or bfloat16 where the processor or the GPU has it: else the first
     *     forward pass is refused
     * @return this builder
     * @throws IllegalArgumentException if layers cannot have the precision: tf32
     */
    public T optPrecision(Precision precision) {
        this.precision = new LinearProduct(precision).getPrecision();
        return self();
    }

    /**
     * Returns the strategy that was set, or the balanced one.
     *
     * @throws IllegalArgumentException if it does not cut the axis
     */
    ShardingStrategy shardingStrategy(int axis, String layer) {
        if (shardingStrategy == null) {
            return ShardingStrategy.axiswise(axis);
        }
        LayerInput.checkStrategy(shardingStrategy, new Shape(units, 1), axis, layer);
        return shardingStrategy;
    }

    /** Leaves the bias to who takes the output. */
    T skipBiasAdd(boolean skip) {
        skipBiasAdd = skip;
        return self();
    }

    /** Returns whether a strategy was set. */
    boolean hasShardingStrategy() {
        return shardingStrategy != null;
    }

    /** Returns whether the input is cut over the batch. */
    boolean isBatchShardedInput() {
        return batchShardedInput;
    }

    /** Returns the precision of products. */
    Precision precision() {
        return precision;
    }

    /** Returns whether the bias is left to who takes the output. */
    boolean isSkipBiasAdd() {
        return skipBiasAdd;
    }

    /** Returns whether there is a bias. */
    boolean isWithBias() {
        return withBias;
    }

    /** Checks what every layer needs. */
    void checkUnits() {
        Preconditions.checkArgument(
                units > 0, "The units of a layer must be 1 or more, not " + units);
        Preconditions.checkArgument(
                withBias || !skipBiasAdd,
                "A layer without a bias has none to leave to the next block: set optBias(true),"
                        + " or optSkipBiasAdd(false)");
    }
}
