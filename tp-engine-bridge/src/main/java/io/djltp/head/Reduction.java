package io.djltp.head;

/** What becomes of the losses of the rows of a batch. */
public enum Reduction {
    /** Their mean, each counted as much as the weight of its label: one loss of the batch. */
    MEAN,
    /** Their sum. */
    SUM,
    /** A loss for each row, 0 for one that does not count. For evaluations. */
    NONE
}
