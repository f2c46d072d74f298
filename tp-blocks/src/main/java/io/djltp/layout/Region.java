package io.djltp.layout;

/** How an activation lies over the ranks. */
public enum Region {

    /** All ranks have the same: the whole. */
    WHOLE,

    /** Each rank has its rows: its part of the batch. */
    BATCH_CUT,

    /** Each rank has its slice of the features, or what was computed of it. */
    SHARDED
}
