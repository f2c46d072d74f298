package io.djltp.forecast;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.layout.TokenCut;

/**
 * The shape of what a rank has of an array.
 *
 * @param tensorSize the number of ranks over which layers are cut
 * @param tensorRank the rank's place among them
 * @param batch how the rows of the batch are cut over the others
 */
record LocalShape(int tensorSize, int tensorRank, Cut batch) {

    /**
     * Returns the shape of the rank's rows, tokens and features.
     *
     * @param array the array
     * @param dataRank the rank's place among those over which the batch is cut
     * @throws IllegalArgumentException if there are fewer tokens than ranks that share them
     */
    Shape of(ForecastArray array, int dataRank) {
        long[] shape = array.shape().getShape().clone();
        if (array.region().isRowsCut() && shape.length > 0) {
            shape[0] = shape[0] / batch.getLength() * batch.getShardLength(dataRank);
        }
        if (array.region().isTokensCut()) {
            TokenCut tokens = TokenCut.of(new Shape(shape), tensorSize);
            shape[tokens.axis()] = tokens.cut().getShardLength(tensorRank);
        }
        if (array.cut() != null) {
            shape[shape.length - 1] = array.cut().getShardLength(tensorRank);
        }
        return new Shape(shape);
    }
}
