package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;

/**
 * A {@code Linear} layer that becomes a {@link RowParallelLinear}: input features are cut. Its
 * output is always summed over the ranks, so that no plan can leave a summand for the whole.
 */
public final class RowStyle extends Style {

    private final boolean inputIsParallel;
    private final boolean batchShardedOutput;
    private final ShardingStrategy strategy; // or null: balanced

    RowStyle(boolean inputIsParallel, boolean batchShardedOutput, ShardingStrategy strategy) {
        super("row()", "DJL's Linear", RowParallelLinear.class, Styles::isLinear, null);
        this.inputIsParallel = inputIsParallel;
        this.batchShardedOutput = batchShardedOutput;
        this.strategy = strategy;
    }

    /**
     * Returns a style for a layer whose input is whole: it takes the rank's slice itself.
     *
     * @return the style
     */
    public RowStyle scatterInput() {
        return new RowStyle(false, batchShardedOutput, strategy);
    }

    /**
     * Returns a style after which the batch is cut again in MIXED mode.
     *
     * @return the style
     */
    public RowStyle batchShardedOutput() {
        return new RowStyle(inputIsParallel, true, strategy);
    }

    /**
     * Returns a style that cuts the weight as it is told to.
     *
     * @param shardingStrategy the strategy, which cuts axis 1
     * @return the style
     */
    public RowStyle strategy(ShardingStrategy shardingStrategy) {
        return new RowStyle(inputIsParallel, batchShardedOutput, shardingStrategy);
    }

    /** Returns whether the input has to be a rank's slice. */
    boolean takesSlice() {
        return inputIsParallel;
    }

    /** {@inheritDoc} */
    @Override
    RowParallelLinear parallel(Block block) {
        RowParallelLinear.Builder builder =
                RowParallelLinear.builder()
                        .setUnits(Styles.units(block))
                        .optBias(Styles.hasBias(block))
                        .optInputIsParallel(inputIsParallel)
                        .optBatchShardedOutput(batchShardedOutput);
        if (strategy != null) {
            builder.optShardingStrategy(strategy);
        }
        return Styles.move(block, builder.build());
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return super.toString()
                + (inputIsParallel ? "" : ".scatterInput()")
                + (batchShardedOutput ? ".batchShardedOutput()" : "")
                + (strategy == null ? "" : ".strategy(" + strategy + ")");
    }
}
