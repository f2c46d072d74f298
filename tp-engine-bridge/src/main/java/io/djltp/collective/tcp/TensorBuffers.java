package io.djltp.collective.tcp;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.pytorch.Tensor;

import java.nio.ByteBuffer;

/** The memory of contiguous tensors as buffers for sockets, without a copy. */
final class TensorBuffers {

    static final ByteBuffer[] NONE = {};

    private static final long PIECE = 1 << 30; // a buffer holds less than 2 GiB

    private TensorBuffers() {}

    /**
     * Returns the memory of some elements. The buffers are valid as long as the tensor.
     *
     * @param tensor a flat, contiguous tensor in host memory
     * @param start the first element
     * @param length the number of elements
     * @return the buffers, in order
     */
    static ByteBuffer[] of(Tensor tensor, long start, long length) {
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
