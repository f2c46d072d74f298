package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import org.bytedeco.pytorch.Tensor;

import java.util.Arrays;

/** The memory of arrays: where it begins, and what is in it. */
public final class ArrayMemory {

    private static final long LINE = 64; // bytes of a line of the cache

    private ArrayMemory() {}

    /**
     * Returns whether an array begins at a cache line, as all that libtorch allocates on the CPU,
     * or is of a type or on a device that does not care.
     *
     * <p>A product of MKL rounds its last bits by where its operands begin in a cache line (Intel's
     * guide calls for 64 bytes where results have to be reproducible). Rows of a batch begin
     * anywhere, and so does what DJL has made of a Java buffer: the same numbers elsewhere in
     * memory would be another training.
     *
     * @param array the array
     * @return whether it need not be moved
     */
    public static boolean isAligned(NDArray array) {
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
    public static NDArray aligned(NDArray array) {
        if (isAligned(array)) {
            return array;
        }
        try (array) {
            return array.duplicate();
        }
    }

    /**
     * Replaces what an array holds, and frees that: the object stays, so that whoever keeps it,
     * such as a predictor that has computed with it before, sees the new contents. Views of it keep
     * the old memory.
     *
     * @param array the array; afterwards it requires a gradient only if told so again
     * @param contents an array of the same shape, type and device, which is closed
     */
    public static void replace(NDArray array, NDArray contents) {
        array.intern(contents);
        JavaMemory.release(array);
    }

    /**
     * Returns a view of any shape of a few elements: that at (i, j, ...) is number i + j + ... of
     * them. Libtorch lets everything be written into it, but not into a single element that is
     * expanded to a shape.
     *
     * @param line the elements, one more than the sum of the lengths of all axes less one each
     * @param shape the shape
     * @return the view
     */
    public static NDArray overlapped(NDArray line, Shape shape) {
        long[] strides = new long[shape.dimension()];
        Arrays.fill(strides, 1);
        return TorchScope.arrayWithoutGraph(
                line.getManager(),
                () -> {
                    Tensor elements = TensorView.of(line).tensor();
                    Tensor view = elements.as_strided(shape.getShape(), strides);
                    return view.detach(); // to autograd no view
                });
    }
}
