package io.djltp.sharding;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.RankParameterStore;

/**
 * A block that computes together with the same block of other ranks.
 *
 * <p>It declares its parameters in their full shape, and how each is cut. Its parameter store
 * decides what it works on: a {@link RankParameterStore} hands out the rank's shards, any other
 * store the whole parameters, on which the block is the ordinary, unsharded one. Its {@code
 * saveParameters} writes them by {@link HeldParameters#save}, which gathers the shards.
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
