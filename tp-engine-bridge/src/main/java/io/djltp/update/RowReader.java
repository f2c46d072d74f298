package io.djltp.update;

/**
 * Who reads a weight and what its {@link WeightUpdate} keeps of it, from the first row to the last,
 * while the weight is trained: no row may change before it was read.
 */
@FunctionalInterface
public interface RowReader {

    /** More rows than there are. */
    long ALL = Long.MAX_VALUE;

    /**
     * Waits until some rows were read.
     *
     * @param end the row after the last of them: all before it are waited for, too
     */
    void await(long end);
}
