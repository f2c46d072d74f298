package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
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
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import java.util.zip.CRC32C;

/** Writes the file of one part: first all its bytes, with their checksums, then it is synced. */
final class PartWriter implements Closeable {

    private final Path path;
    private final Map<CutTensor, Source> sources = new LinkedHashMap<>();
    private FileChannel file;
    private CheckpointIndex.Part written;

    /** Where the bytes of a part's share of a tensor come from. */
    @FunctionalInterface
    interface Source {

        /** Writes all bytes of the tensor, in row-major order, little-endian. */
        void stream(SafetensorsWriter out) throws IOException;

        /**
         * Returns a source that reads an array when it is written: without a copy if its elements
         * are one after another in host memory.
         *
         * @throws IllegalArgumentException if the array is not what a part has of the tensor
         */
        static Source of(CutTensor tensor, int part, NDArray array) {
            Shape shape = tensor.getShardShape(part);
            if (!array.getShape().equals(shape) || array.getDataType() != tensor.type()) {
                throw new IllegalArgumentException(
                        String.format(
                                "Part %d of tensor %s is %s %s, not %s %s",
                                part,
                                tensor.name(),
                                tensor.type(),
                                shape,
                                array.getDataType(),
                                array.getShape()));
            }
            return out -> write(array, out);
        }

        private static void write(NDArray array, SafetensorsWriter out) throws IOException {
            TensorView view = TensorView.of(array);
            if (array.size() == 0) {
                return;
            }
            if (view.isContiguous() && !view.getDevice().isGpu()) {
                for (ByteBuffer buffer : TensorBuffers.of(array)) {
                    out.write(buffer);
                }
                return;
            }
            try (NDArray copy =
                    view.getDevice().isGpu()
                            ? array.toDevice(Device.cpu(), true)
                            : array.flatten()) {
                write(copy, out);
            }
        }
    }

    PartWriter(Path path) {
        this.path = path;
    }

    void put(CutTensor tensor, Source source) {
        sources.put(tensor, source);
    }

    /**
     * Writes the file.
     *
     * @param part the part
     * @param builder has the metadata of the file
     * @param output what the bytes go through on their way
     */
    void stream(
            int part, SafetensorsWriter.Builder builder, UnaryOperator<WritableByteChannel> output)
            throws IOException {
        for (CutTensor tensor : sources.keySet()) {
            builder.addTensor(tensor.name(), tensor.type(), tensor.getShardShape(part));
        }
        file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        Checksums out = new Checksums(output.apply(file));
        SafetensorsWriter writer = builder.build(out);
        for (Source source : sources.values()) {
            source.stream(writer);
        }
        writer.finish();
        sources.clear(); // the arrays are the trainer's again
        written = out.part();
    }

    /** Brings the file to the disk and closes it. */
    CheckpointIndex.Part sync() throws IOException {
        file.force(true);
        file.close();
        return written;
    }

    /** Removes the file. */
    @Override
    public void close() throws IOException {
        sources.clear();
        if (file != null) {
            file.close();
        }
        Files.deleteIfExists(path);
    }

    /** Writes to a channel, and adds up checksums while a block is in the processor's cache. */
    private static final class Checksums implements WritableByteChannel {

        private static final int BLOCK = CheckpointIndex.BLOCK;

        private final WritableByteChannel out;
        private final CRC32C current = new CRC32C();
        private final List<Integer> sums = new ArrayList<>();
        private long size;

        Checksums(WritableByteChannel out) {
            this.out = out;
        }

        /** {@inheritDoc} Writes a block at most. */
        @Override
        public int write(ByteBuffer bytes) throws IOException {
            int count = (int) Math.min(bytes.remaining(), BLOCK - size % BLOCK);
            ByteBuffer piece = bytes.slice(bytes.position(), count);
            current.update(piece.duplicate());
            while (piece.hasRemaining()) {
                out.write(piece);
            }
            bytes.position(bytes.position() + count);
            size += count;
            if (count > 0 && size % BLOCK == 0) {
                endBlock();
            }
            return count;
        }

        private void endBlock() {
            sums.add((int) current.getValue());
            current.reset();
        }

        /** Returns what was written. */
        CheckpointIndex.Part part() {
            if (size % BLOCK != 0) {
                endBlock();
            }
            return new CheckpointIndex.Part(size, sums);
        }

        @Override
        public boolean isOpen() {
            return out.isOpen();
        }

        @Override
        public void close() throws IOException {
            out.close();
        }
    }
}
