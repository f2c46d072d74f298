package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.Errors;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.pytorch.Tensor;

import java.nio.ByteBuffer;

/** The memory of contiguous tensors as buffers for sockets and files, without a copy. */
public final class TensorBuffers {

    /** No memory. */
    public static final ByteBuffer[] NONE = {};

    private static final long PIECE = 1 << 30; // a buffer holds less than 2 GiB

    private TensorBuffers() {}

    /**
     * Returns the memory of an array. The buffers are valid as long as the array; what is written
     * to them is not seen by autograd.
     *
     * @param array a contiguous array in host memory
     * @return the buffers, in row-major order
     * @throws IllegalArgumentException if its elements do not lie one after another, or on another
     *     device
     */
    public static ByteBuffer[] of(NDArray array) {
        TensorView view = TensorView.of(array);
        Errors.check(
                view.isContiguous() && !view.getDevice().isGpu(),
                "A contiguous array in host memory is needed, not %s on %s",
                view,
                view.getDevice());
        return of(view.tensor(), 0, view.size());
    }

    /**
     * Returns the memory of some elements. For the bridge and the collective backends only. The
     * buffers are valid as long as the tensor.
     *
     * @param tensor a flat, contiguous tensor in host memory
     * @param start the first element
     * @param length the number of elements
     * @return the buffers, in order
     */
    public static ByteBuffer[] of(Tensor tensor, long start, long length) {
        if (length == 0) {
            return NONE;
        }
        long elementSize = tensor.element_size();
        long from = start * elementSize;
        long bytes = length * elementSize;
        ByteBuffer[] pieces = new ByteBuffer[(int) ((bytes + PIECE - 1) / PIECE)];
        BytePointer memory = new BytePointer(tensor.data_ptr());
        for (int i = 0; i < pieces.length; i++) {
            long begin = i * PIECE;
            // a position above 2 GiB would be cut off
            pieces[i] =
                    memory.getPointer(from + begin)
                            .capacity(Math.min(PIECE, bytes - begin))
                            .asByteBuffer();
        }
        return pieces;
    }
}
