package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import java.util.List;

/**
 * A tensor that is to be written.
 *
 * @param name its name
 * @param type its data type
 * @param shape its shape
 * @param pieces the rows that it has, one after another; what is missing behind them is 0
 * @param transposed whether its rows are the columns of the one parameter that it has
 */
record OutputTensor(
        String name, DataType type, Shape shape, List<Piece> pieces, boolean transposed) {

    /**
     * Consecutive rows of a weight.
     *
     * @param source the weight
     * @param from the first row
     * @param to the row behind the last
     */
    record Piece(RowSource source, long from, long to) {}

    /** Returns the number of bytes. */
    long bytes() {
        return shape.size() * type.getNumOfBytes();
    }
}
