package io.djltp.layout;

import io.djltp.loss.FusedHead;

/**
 * How an array is cut over the ranks of a tensor-parallel group: in balanced ranges of its last
 * axis.
 *
 * @param total the length of the last axis over all ranks
 * @param head if not {@code null}, the array is not the slice itself but the features that this
 *     head would compute it from
 */
public record ShardedLayout(long total, FusedHead head) {

    /**
     * Creates the layout of a slice that is there.
     *
     * @param total the length of the last axis over all ranks
     */
    public ShardedLayout(long total) {
        this(total, null);
    }
}
