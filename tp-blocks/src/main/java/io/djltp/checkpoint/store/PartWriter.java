package io.djltp.checkpoint.store;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.internal.torch.TensorBuffers;
import io.djltp.internal.torch.TensorView;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.function.UnaryOperator;

/** Writes the file of one part: first all its bytes, with their checksums, then it is synced. */
final class PartWriter implements Closeable {

    /** The bytes of rows that are copied at a time. */
    static final int CHUNK = 2 << 20;

    private final Path path;
    private final int part;
    private final Map<String, Source> sources = new HashMap<>();
    private FileChannel file;
    private BlockChecksums checksums;

    /** Where the bytes of a part's share of a tensor come from. */
    @FunctionalInterface
    interface Source {

        /** Writes all bytes of the tensor, in row-major order, little-endian. */
        void stream(SafetensorsWriter out) throws IOException;
    }

    PartWriter(Path folder, int part, int parts) {
        path = folder.resolve(nameOf(part, parts));
        this.part = part;
    }

    /** Returns the name of the file of a part. */
    static String nameOf(int part, int parts) {
        return "part-" + part + "-of-" + parts + ".safetensors";
    }

    void put(String name, Source source) {
        sources.put(name, source);
    }

    /**
     * Writes the file.
     *
     * @param tensors all tensors of the checkpoint
     * @param builder has the metadata of the file
     * @param output what the bytes go through on their way
     * @throws IllegalStateException if the part has a tensor that was not put
     */
    void stream(
            Collection<CutTensor> tensors,
            SafetensorsWriter.Builder builder,
            UnaryOperator<WritableByteChannel> output)
            throws IOException {
        builder.optMetadata(
                CheckpointIndex.RANGES, CheckpointIndex.checksumOfRanges(tensors, part));
        for (CutTensor tensor : tensors) {
            if (tensor.isIn(part)) {
                if (!sources.containsKey(tensor.name())) {
                    throw new IllegalStateException(
                            "Part " + part + " of tensor " + tensor.name() + " was not put");
                }
                builder.addTensor(tensor.name(), tensor.type(), tensor.getShardShape(part));
            }
        }
        file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        BlockChecksums.Channel out = new BlockChecksums.Channel(output.apply(file));
        SafetensorsWriter writer = builder.build(out);
        for (CutTensor tensor : tensors) {
            if (tensor.isIn(part)) {
                sources.get(tensor.name()).stream(writer);
            }
        }
        writer.finish();
        sources.clear(); // the arrays are the trainer's again
        checksums = out.checksums();
    }

    /**
     * Writes an array from its memory, or by copies of some rows at a time if its elements do not
     * lie one after another in host memory.
     */
    static void stream(NDArray array, SafetensorsWriter out) throws IOException {
        TensorView view = TensorView.of(array);
        if (view.isContiguous() && !view.getDevice().isGpu()) {
            writeMemory(array, out);
            return;
        }
        Shape shape = array.getShape();
        long bytes = shape.size() * array.getDataType().getNumOfBytes();
        long rows = shape.dimension() == 0 ? 1 : shape.get(0);
        long step = bytes == 0 ? 1 : Math.max(1, CHUNK / Math.max(1, bytes / rows));
        for (long row = 0; row < rows && bytes > 0; row += step) {
            NDIndex index =
                    shape.dimension() == 0
                            ? new NDIndex("...")
                            : new NDIndex("{}:{}", row, Math.min(rows, row + step));
            NDArray chunk = array.get(index);
            boolean gpu = chunk.getDevice().isGpu();
            // on its own device, toDevice would return an alias
            try (NDArray host = gpu ? chunk.toDevice(Device.cpu(), true) : chunk;
                    NDArray copy = host.reshape(new Shape(host.size()))) { // if it is strided
                writeMemory(copy, out);
            }
        }
    }

    private static void writeMemory(NDArray array, SafetensorsWriter out) throws IOException {
        if (array.size() > 0) {
            for (ByteBuffer buffer : TensorBuffers.of(array)) {
                out.write(buffer);
            }
        }
    }

    /** Brings the file to the disk and closes it. */
    CheckpointIndex.Part sync() throws IOException {
        file.force(true);
        file.close();
        return new CheckpointIndex.Part(path.getFileName().toString(), checksums);
    }

    /** Removes the file. */
    void remove() throws IOException {
        close();
        Files.deleteIfExists(path);
    }

    /** Closes the file. */
    @Override
    public void close() throws IOException {
        sources.clear();
        if (file != null) {
            file.close();
        }
    }
}
