package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

/** Numbers of rows as arrays. */
final class Numbers {

    private Numbers() {}

    /**
     * Returns numbers as an array beside another one, and as long open as it: a graph does not keep
     * alive what comes from Java memory.
     *
     * @param like the other array
     * @param numbers the numbers
     * @return the array, int64
     */
    static NDArray create(NDArray like, long[] numbers) {
        return numbers.length == 0 // of which DJL would make a scalar
                ? like.getManager().create(new Shape(0), DataType.INT64)
                : like.getManager().create(numbers);
    }
}
