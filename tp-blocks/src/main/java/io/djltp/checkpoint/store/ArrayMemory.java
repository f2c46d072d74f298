package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;

import io.djltp.safetensors.SafetensorsWriter;
import io.djltp.torch.TensorBuffers;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.function.LongConsumer;

/** The host memory of an array, which is read from its beginning to its end, some at a time. */
final class ArrayMemory {

    private static final int PIECE = ArrayTurns.TURN; // after which it is told
    private static final int PAGE = 4096;

    private final ByteBuffer[] buffers;
    private final long bytes;
    private final LongConsumer read;
    private int buffer; // of what is read next
    private long soFar;

    /**
     * Creates the memory of an array.
     *
     * @param array a contiguous array in host memory
     * @param read told how many of its bytes were read
     */
    ArrayMemory(NDArray array, LongConsumer read) {
        buffers = TensorBuffers.of(array);
        bytes = array.size() * array.getDataType().getNumOfBytes();
        this.read = read;
    }

    long bytes() {
        return bytes;
    }

    /** Returns the bytes that were not read yet. */
    long left() {
        return bytes - soFar;
    }

    /**
     * Returns how far behind a multiple of some bytes the memory begins.
     *
     * @param unit a power of two
     */
    int behind(int unit) {
        return bytes == 0 ? 0 : buffers[0].alignmentOffset(0, unit);
    }

    /** Writes the bytes that are read next, in pieces that end where a page of memory does. */
    void write(long count, SafetensorsWriter out) throws IOException {
        for (long end = soFar + count; soFar < end; ) {
            int most = PIECE - (int) ((behind(PAGE) + soFar) % PAGE);
            ByteBuffer piece = next((int) Math.min(most, end - soFar));
            int length = piece.remaining();
            out.write(piece);
            told(length);
        }
    }

    /** Returns a copy of the bytes that are read next. */
    ByteBuffer copy(int count) {
        ByteBuffer copy = ByteBuffer.allocate(count);
        while (copy.hasRemaining()) {
            ByteBuffer piece = next(copy.remaining());
            int length = piece.remaining();
            copy.put(piece);
            told(length);
        }
        return copy.flip();
    }

    /** Returns the next bytes that lie in one buffer. */
    private ByteBuffer next(int most) {
        if (!buffers[buffer].hasRemaining()) {
            buffer++;
        }
        ByteBuffer from = buffers[buffer];
        int length = Math.min(most, from.remaining());
        ByteBuffer piece = from.slice(from.position(), length);
        from.position(from.position() + length);
        return piece;
    }

    private void told(int length) {
        soFar += length;
        read.accept(soFar);
    }
}
