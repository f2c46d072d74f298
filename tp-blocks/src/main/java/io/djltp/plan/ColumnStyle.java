package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.sharding.ShardingStrategy;

/** A {@code Linear} layer that becomes a {@link ColumnParallelLinear}: output features are cut. */
public final class ColumnStyle extends Style {

    private final boolean gatherOutput;
    private final boolean batchShardedInput;
    private final ShardingStrategy strategy; // or null: balanced

    ColumnStyle(boolean gatherOutput, boolean batchShardedInput, ShardingStrategy strategy) {
        super("column()", "DJL's Linear", ColumnParallelLinear.class, Styles::isLinear, null);
        this.gatherOutput = gatherOutput;
        this.batchShardedInput = batchShardedInput;
        this.strategy = strategy;
    }

    /**
     * Returns a style that gives every rank the whole output, by an all-gather.
     *
     * @return the style
     */
    public ColumnStyle gatherOutput() {
        return new ColumnStyle(true, batchShardedInput, strategy);
    }

    /**
     * Returns a style for the layer where the data-parallel body ends in MIXED mode.
     *
     * @return the style
     */
    public ColumnStyle batchShardedInput() {
        return new ColumnStyle(gatherOutput, true, strategy);
    }

    /**
     * Returns a style that cuts the weight as it is told to.
     *
     * @param shardingStrategy the strategy, which cuts axis 0
     * @return the style
     */
    public ColumnStyle strategy(ShardingStrategy shardingStrategy) {
        return new ColumnStyle(gatherOutput, batchShardedInput, shardingStrategy);
    }

    /** Returns whether each rank keeps its slice of the output. */
    boolean leavesSlice() {
        return !gatherOutput;
    }

    /** {@inheritDoc} */
    @Override
    ColumnParallelLinear parallel(Block block) {
        ColumnParallelLinear.Builder builder =
                ColumnParallelLinear.builder()
                        .setUnits(Styles.units(block))
                        .optBias(Styles.hasBias(block))
                        .optGatherOutput(gatherOutput)
                        .optBatchShardedInput(batchShardedInput);
        if (strategy != null) {
            builder.optShardingStrategy(strategy);
        }
        return Styles.move(block, builder.build());
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return super.toString()
                + (gatherOutput ? ".gatherOutput()" : "")
                + (batchShardedInput ? ".batchShardedInput()" : "")
                + (strategy == null ? "" : ".strategy(" + strategy + ")");
    }
}
