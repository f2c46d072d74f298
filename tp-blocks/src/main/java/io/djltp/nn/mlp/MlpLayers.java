package io.djltp.nn.mlp;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.StackedOutput;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

/**
 * Makes the two layers of an MLP, and resolves how each is cut.
 *
 * @param hidden the number of hidden features
 * @param cut whether they are cut over the ranks
 * @param chosen which of them each rank has, or {@code null}: balanced ranges
 * @param bias whether the layers have a bias
 * @param batchSharded whether what comes before and after has a part of the batch
 * @param sequenceParallel whether what comes before and after has a part of the tokens
 * @param precision that of the layers' products
 */
record MlpLayers(
        long hidden,
        boolean cut,
        Cut chosen,
        boolean bias,
        boolean batchSharded,
        boolean sequenceParallel,
        Precision precision) {

    /** Returns the two projections that a gated MLP stacks. */
    StackedOutput gateUp() {
        AxisPart half = chosen == null ? AxisPart.even(hidden) : AxisPart.chosen(chosen);
        return new StackedOutput(half, half);
    }

    /** Returns the first layer, of a gated MLP with both projections. */
    Block first(StackedOutput stacked) {
        long rows = stacked == null ? hidden : stacked.getUnits();
        if (!cut) {
            return Linear.builder().setUnits(rows).optBias(bias).build();
        }
        ShardingStrategy one =
                chosen == null ? ShardingStrategy.rowwise() : ShardingStrategy.rowwise(chosen);
        ShardingStrategy both =
                chosen == null || stacked == null
                        ? ShardingStrategy.gateUp()
                        : stacked.getShardingStrategy();
        return ColumnParallelLinear.builder()
                .setUnits(rows)
                .optBias(bias)
                .optPrecision(precision)
                .optBatchShardedInput(batchSharded)
                .optSequenceParallel(sequenceParallel)
                .optShardingStrategy(stacked == null ? one : both)
                .build();
    }

    /** Returns the activation between them: what was chosen, or the default. */
    static Block activation(Block chosen, boolean gated) {
        if (chosen != null) {
            return chosen;
        }
        // not DJL's swish: it frees the memory of the number that it multiplies with before the
        // backward pass reads it
        return gated
                ? LambdaBlock.singleton(x -> Activation.sigmoid(x).mul(x))
                : Activation.geluBlock();
    }

    /** Returns the second layer. */
    Block second(long units) {
        if (!cut) {
            return Linear.builder().setUnits(units).optBias(bias).build();
        }
        return RowParallelLinear.builder()
                .setUnits(units)
                .optBias(bias)
                .optPrecision(precision)
                .optBatchShardedOutput(batchSharded)
                .optSequenceParallel(sequenceParallel)
                .optShardingStrategy(
                        chosen == null
                                ? ShardingStrategy.columnwise()
                                : ShardingStrategy.columnwise(chosen))
                .build();
    }
}
