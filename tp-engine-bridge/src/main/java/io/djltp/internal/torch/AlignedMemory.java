package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

/**
 * Arrays that begin where a cache line does, as all that libtorch allocates on the CPU.
 *
 * <p>A product of MKL rounds its last bits by where its operands begin in a cache line (Intel's
 * guide calls for 64 bytes where results have to be reproducible). Rows of a batch begin anywhere,
 * and so does what DJL has made of a Java buffer: the same numbers elsewhere in memory would be
 * another training.
 */
public final class AlignedMemory {

    private static final long LINE = 64; // bytes

    private AlignedMemory() {}

    /**
     * Returns whether an array begins at a cache line, or is of a type or on a device that does not
     * care.
     *
     * @param array the array
     * @return whether it need not be moved
     */
    public static boolean holds(NDArray array) {
        return !array.getDataType().isFloating()
                || array.getDevice().isGpu()
                || TensorView.of(array).address() % LINE == 0;
    }

    /**
     * Returns an array with the same elements at the beginning of a cache line.
     *
     * @param array the array, which is closed if it has to be copied
     * @return the array itself, or a copy that is attached to its manager
     */
    public static NDArray of(NDArray array) {
        if (holds(array)) {
            return array;
        }
        try (array) {
            return array.duplicate();
        }
    }
}
