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

/**
 * Writes an array straight from its memory. One whose elements do not lie one after another in host
 * memory goes through a copy of as many rows as a chunk has place for.
 */
final class ArrayStream {

    /** The bytes of rows that are copied at a time. */
    static final long CHUNK = 4 << 20;

    private ArrayStream() {}

    static void write(NDArray array, SafetensorsWriter out) throws IOException {
        TensorView view = TensorView.of(array);
        if (view.isContiguous() && !view.getDevice().isGpu()) {
            writeMemory(array, out);
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
            writeCopy(array.get(index), out);
        }
    }

    /** Returns how many rows of an array go into a chunk, one at least. */
    static long rowsOfChunk(long rows, long bytes) {
        return rows == 0 || bytes == 0 ? 1 : Math.max(1, CHUNK / Math.max(1, bytes / rows));
    }

    private static void writeCopy(NDArray chunk, SafetensorsWriter out) throws IOException {
        boolean gpu = chunk.getDevice().isGpu();
        // on its own device, toDevice would return an alias
        try (NDArray host = gpu ? chunk.toDevice(Device.cpu(), true) : chunk;
                NDArray rows = host.reshape(new Shape(host.size()))) { // copies what is strided
            writeMemory(rows, out);
        }
    }

    private static void writeMemory(NDArray array, SafetensorsWriter out) throws IOException {
        for (ByteBuffer piece : TensorBuffers.of(array)) {
            out.write(piece);
        }
    }
}
