package io.djltp.sharding;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

/**
 * A block that computes together with the same block of other ranks.
 *
 * <p>It declares its parameters in their full shape, and how each is cut. The parameter store of a
 * rank returns the rank's part; any other store returns the whole parameter, with which the block
 * is the ordinary, uncut one. The block's {@code saveParameters} writes its parameters by {@code
 * io.djltp.nn.ShardedParameters.save}, which gathers the parts.
 */
public interface ShardedBlock extends Block {

    /**
     * Returns how one of the block's own parameters is cut.
     *
     * @param parameter one of the block's direct parameters
     * @return the strategy
     */
    ShardingStrategy getShardingStrategy(Parameter parameter);

    /**
     * Returns whether the input is cut over the batch in {@link io.djltp.rank.ParallelMode#MIXED
     * MIXED} mode: the block is the first of the tensor-parallel head.
     *
     * @return whether the block gathers the batch
     */
    boolean isBatchShardedInput();
}
