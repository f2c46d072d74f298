package io.djltp.checkpoint.store;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.safetensors.SafetensorsWriter;
import io.djltp.torch.TensorBuffers;
import io.djltp.torch.TensorView;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.function.LongConsumer;

/**
 * Writes an array straight from its memory. One whose elements do not lie one after another in host
 * memory goes through a copy of as many rows as a chunk has place for.
 */
final class ArrayStream {

    /** The bytes of rows that are copied at a time, by each of two threads. */
    static final long CHUNK = 2 << 20;

    private static final int PIECE = 1 << 20; // after which it is told

    private ArrayStream() {}

    /**
     * Writes an array.
     *
     * @param array the array
     * @param out where it goes
     * @param read told how many of its bytes were read
     */
    static void write(NDArray array, SafetensorsWriter out, LongConsumer read) throws IOException {
        Counted counted = new Counted(out, read);
        TensorView view = TensorView.of(array);
        if (view.isContiguous() && !view.getDevice().isGpu()) {
            counted.writeMemory(array);
            return;
        }
        long bytes = array.size() * array.getDataType().getNumOfBytes();
        long rows = array.getShape().dimension() == 0 ? 1 : array.getShape().get(0);
        long step = rowsOfChunk(rows, bytes);
        for (long row = 0; row < rows && bytes > 0; row += step) {
            NDIndex index =
                    array.getShape().dimension() == 0
                            ? new NDIndex("...")
                            : new NDIndex("{}:{}", row, Math.min(rows, row + step));
            counted.writeCopy(array.get(index));
        }
    }

    /** Returns how many rows of an array go into a chunk, one at least. */
    static long rowsOfChunk(long rows, long bytes) {
        return rows == 0 || bytes == 0 ? 1 : Math.max(1, CHUNK / Math.max(1, bytes / rows));
    }

    /** Counts what was read. */
    private static final class Counted {

        private final SafetensorsWriter out;
        private final LongConsumer read;
        private long soFar;

        Counted(SafetensorsWriter out, LongConsumer read) {
            this.out = out;
            this.read = read;
        }

        void writeCopy(NDArray chunk) throws IOException {
            boolean gpu = chunk.getDevice().isGpu();
            // on its own device, toDevice would return an alias
            try (NDArray host = gpu ? chunk.toDevice(Device.cpu(), true) : chunk;
                    NDArray rows = host.reshape(new Shape(host.size()))) { // copies what is strided
                writeMemory(rows);
            }
        }

        void writeMemory(NDArray array) throws IOException {
            for (ByteBuffer memory : TensorBuffers.of(array)) {
                for (int begin = 0; begin < memory.capacity(); begin += PIECE) {
                    int length = Math.min(PIECE, memory.capacity() - begin);
                    out.write(memory.slice(begin, length));
                    soFar += length;
                    read.accept(soFar);
                }
            }
        }
    }
}
