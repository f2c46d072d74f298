package io.djltp.checkpoint.store;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.safetensors.SafetensorsWriter;
import io.djltp.torch.TensorView;

import java.io.IOException;
import java.util.function.LongConsumer;

/**
 * Writes an array straight from its memory. One whose elements do not lie one after another in host
 * memory goes through a copy of as many rows as a chunk has place for.
 */
final class ArrayStream implements ArraySource {

    /** The bytes of rows that are copied at a time, by each of two threads. */
    static final long CHUNK = 2 << 20;

    private final NDArray array;
    private final LongConsumer read;

    /**
     * Creates a stream.
     *
     * @param array the array
     * @param read told how many of its bytes were read
     */
    ArrayStream(NDArray array, LongConsumer read) {
        this.array = array;
        this.read = read;
    }

    /** {@inheritDoc} */
    @Override
    public ArrayMemory memory() {
        TensorView view = TensorView.of(array);
        return view.isContiguous() && !view.getDevice().isGpu()
                ? new ArrayMemory(array, read)
                : null;
    }

    /** {@inheritDoc} */
    @Override
    public void stream(SafetensorsWriter out) throws IOException {
        ArrayMemory memory = memory();
        if (memory != null) {
            memory.write(memory.bytes(), out);
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
            writeCopy(array.get(index), row * (bytes / rows), out);
        }
    }

    /** Returns how many rows of an array go into a chunk, one at least. */
    static long rowsOfChunk(long rows, long bytes) {
        return rows == 0 || bytes == 0 ? 1 : Math.max(1, CHUNK / Math.max(1, bytes / rows));
    }

    private void writeCopy(NDArray chunk, long begin, SafetensorsWriter out) throws IOException {
        boolean gpu = chunk.getDevice().isGpu();
        // on its own device, toDevice would return an alias
        try (NDArray host = gpu ? chunk.toDevice(Device.cpu(), true) : chunk;
                NDArray rows = host.reshape(new Shape(host.size()))) { // copies what is strided
            ArrayMemory memory = new ArrayMemory(rows, soFar -> read.accept(begin + soFar));
            memory.write(memory.bytes(), out);
        }
    }
}
