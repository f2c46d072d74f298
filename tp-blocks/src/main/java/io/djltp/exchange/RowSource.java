package io.djltp.exchange;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.Margin;

import java.io.IOException;

/** A weight that can be read some rows (indices of axis 0) at a time. */
interface RowSource {

    /** Returns the shape. */
    Shape shape();

    /** Returns the data type. */
    DataType type();

    /** Returns the margin of the head that has it, or {@code null}. */
    Margin margin();

    /**
     * Reads consecutive rows.
     *
     * @param first the first row
     * @param count how many
     * @param manager the manager of the rows, in host memory
     * @return the rows, which may be the memory of the weight itself
     * @throws IOException if they cannot be read
     */
    NDArray rows(long first, long count, NDManager manager) throws IOException;

    /** Notes that no more rows are read for now. */
    default void release() {}
}
