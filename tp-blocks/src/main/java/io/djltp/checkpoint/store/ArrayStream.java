package io.djltp.checkpoint.store;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;

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
        long rows = array.getShape().dimension() == 0 ? 1 : array.getShape().get(0);
        if (array.getShape().dimension() == 0) {
            writeCopy(array, out);
            return;
        }
        long size = array.size() * array.getDataType().getNumOfBytes();
        long step = rowsOfChunk(rows, size);
        for (long row = 0; row < rows && size > 0; row += step) {
            long end = Math.min(rows, row + step);
            try (NDArray chunk = array.get(new NDIndex("{}:{}", row, end))) {
                writeCopy(chunk, out);
            }
        }
    }

    /** Returns how many rows of an array go into a chunk, one at least. */
    static long rowsOfChunk(long rows, long bytes) {
        return rows == 0 || bytes == 0 ? 1 : Math.max(1, CHUNK / Math.max(1, bytes / rows));
    }

    private static void writeCopy(NDArray chunk, SafetensorsWriter out) throws IOException {
        boolean gpu = chunk.getDevice().isGpu();
        // toDevice would return an alias on the same device; duplicate() is contiguous
        try (NDArray host = gpu ? chunk.toDevice(Device.cpu(), true) : chunk.duplicate()) {
            if (TensorView.of(host).isContiguous()) {
                writeMemory(host, out);
            } else {
                try (NDArray straight = host.duplicate()) {
                    writeMemory(straight, out);
                }
            }
        }
    }

    private static void writeMemory(NDArray array, SafetensorsWriter out) throws IOException {
        for (ByteBuffer piece : TensorBuffers.of(array)) {
            out.write(piece);
        }
    }
}
