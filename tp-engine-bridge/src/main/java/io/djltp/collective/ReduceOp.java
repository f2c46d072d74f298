package io.djltp.collective;

/** How the elements of all ranks become one element. */
public enum ReduceOp {
    /** The sum, taken in the order of the ranks; 16-bit types are summed in 32 bits. */
    SUM,
    /** The largest. */
    MAX,
    /** The smallest. */
    MIN
}
