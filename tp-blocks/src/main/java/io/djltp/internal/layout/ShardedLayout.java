package io.djltp.internal.layout;

import io.djltp.cut.Cut;

import org.jspecify.annotations.Nullable;

/**
 * How an array is cut over the ranks of a tensor-parallel group, along its last axis.
 *
 * @param cut which ranges of the last axis each rank has
 * @param head if not {@code null}, the array is not the slice itself but the features that this
 *     head would compute it from
 */
public record ShardedLayout(Cut cut, @Nullable DeferredHead head) {

    /**
     * Creates the layout of a slice that is there.
     *
     * @param cut which ranges of the last axis each rank has
     */
    public ShardedLayout(Cut cut) {
        this(cut, null);
    }
}
