package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;

/**
 * The row of a rank that has none, because the batch has fewer rows than there are ranks: it
 * computes one that does not count, so that every operation has something to compute, and what
 * branches off has as many rows as what it is joined with.
 */
final class SpareRow {

    private SpareRow() {}

    /**
     * Adds zeros to an array without a row.
     *
     * @param empty the array, [0, ...]; it stays in the graph, so that backward all ranks do alike
     * @param times how many rows one of the batch has become
     * @return the array, [times, ...]
     */
    static NDArray add(NDArray empty, long times) {
        Shape shape = new Shape(times).addAll(empty.getShape().slice(1));
        NDArray zeros = empty.getManager().zeros(shape, empty.getDataType());
        return NDArrays.concat(new NDList(empty, zeros));
    }
}
