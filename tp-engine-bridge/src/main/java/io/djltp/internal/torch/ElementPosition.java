package io.djltp.internal.torch;

import ai.djl.ndarray.types.Shape;

import java.util.Arrays;

/** Where an element of an array is, as an error names it. */
public final class ElementPosition {

    private ElementPosition() {}

    /**
     * Returns the position of an element.
     *
     * @param place its place among all elements, the last axis running fastest
     * @param shape the shape of the array
     * @return the position along each axis, such as "[1, 2]"
     */
    public static String of(long place, Shape shape) {
        long[] position = new long[shape.dimension()];
        long rest = place;
        for (int i = position.length - 1; i >= 0; i--) {
            position[i] = rest % shape.get(i);
            rest /= shape.get(i);
        }
        return Arrays.toString(position);
    }
}
