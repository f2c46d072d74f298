package io.djltp.mesh;

/** What the ranks have of an array in a forward pass. */
public enum Region {
    /** The same array on all ranks: they compute alike. */
    WHOLE,
    /** Each rank has its rows of the batch: axis 0 is cut over the data-parallel group. */
    BATCH_CUT,
    /** Each rank has its slice of the features: the last axis is cut over the tensor group. */
    SHARDED
}
