package io.djltp.nn;

import ai.djl.nn.Block;

import io.djltp.internal.parameters.HeldParameters;

import java.io.DataOutputStream;
import java.io.IOException;

/** Parameters of a block of one's own that are sharded over the ranks of a trainer. */
public final class ShardedParameters {

    private ShardedParameters() {}

    /**
     * Writes the parameters of a block, without its children, as DJL does; those that ranks hold a
     * part of are gathered. A {@link io.djltp.sharding.ShardedBlock} calls it in {@code
     * saveParameters}.
     *
     * @param block the block
     * @param os the stream
     * @throws IOException if it cannot be written
     */
    public static void save(Block block, DataOutputStream os) throws IOException {
        HeldParameters.save(block, os);
    }
}
