package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.internal.Errors;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.internal.torch.TensorBuffers;
import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.IntFunction;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;

/**
 * Writes what one process has of a checkpoint, in this order, on any one thread at a time:
 *
 * <pre>
 *   add(tensor, sources) ...  what the checkpoint holds: the same, in the same order, in every process
 *   stream()                  reads the arrays and writes the files: arrays must not change meanwhile
 *   finish(values)            syncs; the process of rank 0 waits for the others and completes
 *   close()                   if it was not finished, removes what was written
 * </pre>
 *
 * <p>Another process tells that of rank 0 about a part by a small file beside it: processes share
 * nothing else on the threads that write.
 */
final class CheckpointWriter implements Closeable {

    private static final long POLL_MILLIS = 20;
    private static final String WRITTEN = ".written";
    private static final String FAILED = ".failed";

    private final CheckpointFolder of;
    private final Path complete;
    private final Path folder; // until it is complete
    private final long step;
    private final String mesh;
    private final int parts;
    private final Map<String, CutTensor> tensors = new LinkedHashMap<>();
    private final Map<Integer, PartWriter> own = new TreeMap<>();
    private boolean ended;

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
            Errors.check(
                    array.getShape().equals(shape) && array.getDataType() == tensor.type(),
                    "Part %d of tensor %s is %s %s, not %s %s",
                    part,
                    tensor.name(),
                    tensor.type(),
                    shape,
                    array.getDataType(),
                    array.getShape());
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

    CheckpointWriter(
            CheckpointFolder of,
            Path folder,
            long step,
            String mesh,
            int parts,
            Collection<Integer> own)
            throws IOException {
        this.of = of;
        complete = of.folderOf(step);
        this.folder = folder;
        this.step = step;
        this.mesh = mesh;
        this.parts = parts;
        for (int part : own) {
            Path file = folder.resolve(CheckpointIndex.fileName(part, parts));
            this.own.put(part, new PartWriter(file));
        }
        try {
            Files.createDirectories(folder);
        } catch (IOException e) {
            throw cannotBeWritten(e);
        }
    }

    /**
     * Adds a tensor. Nothing is copied: the sources are read by {@link #stream()}. Of a tensor that
     * is not cut, part 0 has the whole.
     *
     * @param tensor the tensor, which is cut into as many parts as the checkpoint has
     * @param sources returns what a part of this process has of it
     * @throws IllegalArgumentException if there is one of this name
     */
    void add(CutTensor tensor, IntFunction<Source> sources) {
        if (tensors.putIfAbsent(tensor.name(), tensor) != null) {
            throw new IllegalArgumentException(
                    "A checkpoint cannot have a second tensor named " + tensor.name());
        }
        own.forEach(
                (part, writer) -> {
                    if (tensor.isIn(part)) {
                        writer.put(tensor, sources.apply(part));
                    }
                });
    }

    /**
     * Writes the parts of this process. When it returns, the arrays may change; the files are not
     * synced yet.
     *
     * @throws IOException if they cannot be written; what was written is removed
     */
    void stream() throws IOException {
        try {
            for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
                SafetensorsWriter.Builder file =
                        SafetensorsWriter.builder()
                                .optMetadata("format", "pt")
                                .optMetadata("step", Long.toString(step))
                                .optMetadata("part", each.getKey() + " of " + parts);
                each.getValue().stream(each.getKey(), file, of.output);
            }
        } catch (IOException e) {
            throw giveUp(cannotBeWritten(e));
        } catch (RuntimeException e) {
            throw giveUp(e);
        }
    }

    /**
     * Syncs the files of this process. The process of rank 0 then waits for the parts of all
     * others, writes the index and gives the checkpoint its name: from then on it is there,
     * whatever happens.
     *
     * @param values what else the checkpoint holds; only those of the process of rank 0 are kept
     * @throws CheckpointException if another process failed, or was not ready in time; what was
     *     written is removed
     * @throws IOException if the files cannot be written; what was written is removed
     */
    void finish(JsonObject values) throws IOException {
        try {
            Map<Integer, CheckpointIndex.Part> written = new TreeMap<>();
            for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
                written.put(each.getKey(), each.getValue().sync());
            }
            if (of.isFirst()) {
                awaitOthers(written);
                complete(List.copyOf(written.values()), values);
            } else {
                CheckpointFolder.syncFolder(folder);
                for (Map.Entry<Integer, CheckpointIndex.Part> each : written.entrySet()) {
                    tell(each.getKey(), WRITTEN, each.getValue().encode());
                }
            }
            ended = true;
        } catch (IOException e) {
            throw giveUp(cannotBeWritten(e));
        } catch (RuntimeException e) {
            throw giveUp(e);
        }
    }

    /** Returns how many bytes the files of this process have. */
    long getBytes() {
        return own.values().stream().mapToLong(part -> part.written().bytes()).sum();
    }

    private void complete(List<CheckpointIndex.Part> written, JsonObject values)
            throws IOException {
        CheckpointIndex index = new CheckpointIndex(step, mesh, written, tensors, values);
        Checkpoint.open(folder, index).close(); // the parts fit each other
        index.write(folder);
        CheckpointFolder.syncFolder(folder);
        CheckpointFolder.rename(folder, complete);
    }

    private CheckpointException cannotBeWritten(IOException e) {
        String what = "The checkpoint " + complete + " cannot be written: ";
        String why = CheckpointException.reason(e);
        return new CheckpointException(why.startsWith(what) ? why : what + why, e);
    }

    /** Removes what was written, and tells the process of rank 0. */
    private <E extends Exception> E giveUp(E e) {
        ended = true;
        try {
            for (PartWriter each : own.values()) {
                each.close();
            }
            if (of.isFirst()) {
                of.giveUp(folder);
            } else {
                for (int part : own.keySet()) {
                    Files.deleteIfExists(report(part, WRITTEN));
                    String why = String.valueOf(e.getMessage());
                    tell(part, FAILED, why.getBytes(StandardCharsets.UTF_8));
                }
            }
        } catch (IOException | RuntimeException alsoFailed) {
            e.addSuppressed(alsoFailed);
        }
        return e;
    }

    private void tell(int part, String kind, byte[] text) throws IOException {
        Path half = report(part, kind + ".half");
        CheckpointFolder.write(half, text);
        Files.move(half, report(part, kind), StandardCopyOption.ATOMIC_MOVE);
    }

    private Path report(int part, String kind) {
        return folder.resolve("part-" + part + "-of-" + parts + kind);
    }

    /**
     * Waits for the parts that other processes write.
     *
     * @param written gets what they say
     * @throws CheckpointException if one failed or is late
     */
    private void awaitOthers(Map<Integer, CheckpointIndex.Part> written) throws IOException {
        long end = System.nanoTime() + of.timeout.toNanos();
        while (true) {
            List<Integer> missing =
                    IntStream.range(0, parts)
                            .filter(part -> !written.containsKey(part))
                            .boxed()
                            .toList();
            if (missing.isEmpty()) {
                return;
            }
            if (System.nanoTime() - end > 0) {
                throw new CheckpointException(
                        String.format(
                                "parts %s of %d were not written within %d s: their processes have"
                                        + " ended, or see another folder than this one",
                                missing, parts, of.timeout.toSeconds()));
            }
            for (int part : missing) {
                Path failed = report(part, FAILED);
                if (Files.exists(failed)) {
                    throw new CheckpointException(
                            "the process of part %s failed: %s"
                                    .formatted(part, Files.readString(failed)));
                }
                Path report = report(part, WRITTEN);
                if (Files.exists(report)) {
                    written.put(part, CheckpointIndex.Part.decode(Files.readAllBytes(report)));
                    Files.delete(report);
                }
            }
            if (written.size() < parts) {
                sleep();
            }
        }
    }

    private static void sleep() throws InterruptedIOException {
        try {
            Thread.sleep(POLL_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for other processes");
        }
    }

    /** Removes what was written, unless the checkpoint was finished. */
    @Override
    public void close() {
        if (!ended) {
            giveUp(new CheckpointException("it was given up"));
        }
    }

    /**
     * Writes the file of one part: first all its bytes, with their checksums, then it is synced.
     */
    static final class PartWriter implements Closeable {

        private final Path path;
        private final Map<CutTensor, Source> sources = new LinkedHashMap<>();
        private @Nullable FileChannel file;
        private CheckpointIndex.@Nullable Part written;

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
                int part,
                SafetensorsWriter.Builder builder,
                UnaryOperator<WritableByteChannel> output)
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
            if (file == null) {
                throw nothingWritten();
            }
            file.force(true);
            file.close();
            return written();
        }

        /** Returns what was written. */
        private CheckpointIndex.Part written() {
            if (written == null) {
                throw nothingWritten();
            }
            return written;
        }

        private static IllegalStateException nothingWritten() {
            return new IllegalStateException("Nothing was written: stream comes first");
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
}
