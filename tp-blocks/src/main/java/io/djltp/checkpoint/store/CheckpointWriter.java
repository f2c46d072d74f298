package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import java.io.Closeable;
import java.io.IOException;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import java.util.function.LongConsumer;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/**
 * Writes what one process has of a checkpoint, in this order, on any one thread at a time:
 *
 * <pre>
 *   declare(tensor) ...       what the checkpoint holds: the same, in the same order, in every process
 *   put(name, part, array)    what the parts of this process hold of each
 *   stream()                  reads the arrays and writes the files: arrays must not change meanwhile
 *   finish(values)            syncs; the process of rank 0 waits for the others and completes
 *   close()                   if it was not finished, removes what was written
 * </pre>
 */
public final class CheckpointWriter implements Closeable {

    private final CheckpointFolder of;
    private final Path complete;
    private final Path folder; // until it is complete
    private final long step;
    private final String mesh;
    private final int parts;
    private final boolean first; // the process of rank 0
    private final Duration timeout;
    private final UnaryOperator<WritableByteChannel> output;
    private final PartReports reports;
    private final Map<String, CutTensor> tensors = new LinkedHashMap<>();
    private final Map<Integer, PartWriter> own = new TreeMap<>();
    private boolean streamed;
    private boolean ended;

    CheckpointWriter(
            CheckpointFolder of,
            Path folder,
            long step,
            String mesh,
            int parts,
            Collection<Integer> own)
            throws IOException {
        this.of = of;
        complete = of.getPath().resolve(StepNames.complete(step));
        this.folder = folder;
        this.step = step;
        this.mesh = mesh;
        this.parts = parts;
        first = of.isFirst();
        timeout = of.timeout();
        output = of.output();
        reports = new PartReports(folder, parts);
        for (int part : own) {
            if (part < 0 || part >= parts) {
                throw new IllegalArgumentException("There is no part " + part + " of " + parts);
            }
            this.own.put(part, new PartWriter(folder, step, part, parts));
        }
        try {
            Files.createDirectories(folder);
        } catch (IOException e) {
            throw cannotBeWritten(e);
        }
    }

    /**
     * Declares a tensor.
     *
     * @param tensor the tensor, cut into as many parts as the checkpoint has
     * @throws IllegalArgumentException if there is one of this name, or it is cut into another
     *     number of parts
     */
    public void declare(CutTensor tensor) {
        if (!tensor.isWhole() && tensor.cut().getRanks() != parts) {
            throw new IllegalArgumentException(
                    String.format(
                            "Tensor %s is cut into %d parts, and the checkpoint has %d",
                            tensor.name(), tensor.cut().getRanks(), parts));
        }
        if (tensors.putIfAbsent(tensor.name(), tensor) != null) {
            throw new IllegalArgumentException("A tensor " + tensor.name() + " was declared");
        }
    }

    /**
     * Says what a part of this process holds of a tensor. Nothing is copied: the array is read by
     * {@link #stream()}. Of a tensor that is not cut, part 0 has the whole, and what is put for
     * others is not needed.
     *
     * @param name the name of a declared tensor
     * @param part the part
     * @param array the shard, on any device
     * @throws IllegalArgumentException if the tensor is not declared, the part is not this
     *     process's, or the array has another shape or data type
     */
    public void put(String name, int part, NDArray array) {
        put(name, part, array, read -> {});
    }

    /**
     * Says what a part of this process holds of a tensor, as {@link #put(String, int, NDArray)}
     * does.
     *
     * @param name the name of a declared tensor
     * @param part the part
     * @param array the shard, on any device
     * @param read told now and then how many bytes of the array were read, from the first on: these
     *     may change. Called by the thread that reads
     * @throws IllegalArgumentException if the tensor is not declared, the part is not this
     *     process's, or the array has another shape or data type
     */
    public void put(String name, int part, NDArray array, LongConsumer read) {
        CutTensor tensor = tensors.get(name);
        if (tensor != null) {
            Shape shape = tensor.getShardShape(part);
            if (!array.getShape().equals(shape) || array.getDataType() != tensor.type()) {
                throw new IllegalArgumentException(
                        String.format(
                                "Part %d of tensor %s is %s %s, not %s %s",
                                part,
                                name,
                                tensor.type(),
                                shape,
                                array.getDataType(),
                                array.getShape()));
            }
        }
        put(name, part, new ArrayStream(array, read));
    }

    /** Says where the bytes of a part of this process come from. */
    void put(String name, int part, ArraySource source) {
        if (!tensors.containsKey(name) || !own.containsKey(part)) {
            throw new IllegalArgumentException(
                    String.format(
                            "Part %d of tensor %s is not this process's to write: it has the parts"
                                    + " %s of %d tensors",
                            part, name, own.keySet(), tensors.size()));
        }
        if (tensors.get(name).isIn(part)) {
            own.get(part).put(name, source);
        }
    }

    /**
     * Writes the parts of this process, two at a time and a chunk at a time from the memory of the
     * arrays. A tensor and those right after it whose names begin with its name and a slash are
     * read in turns, so that about the same share of the rows of each has been read at any time.
     * When it returns, the arrays may change; the files are not synced yet.
     *
     * @throws IOException if they cannot be written; what was written is removed
     * @throws IllegalStateException if an array is missing
     */
    public void stream() throws IOException {
        stream(() -> false);
    }

    /**
     * Writes the parts of this process as {@link #stream()} does. The bytes go straight to the disk
     * where the file system takes them so, which costs training the least of the processor, and is
     * as slow as the disk; of a part for which {@code hurry} is true once, the rest goes to the
     * page cache.
     *
     * @param hurry whether somebody waits for the arrays, and for too long: asked before each
     *     write, by two threads
     * @throws IOException if they cannot be written; what was written is removed
     * @throws IllegalStateException if an array is missing
     */
    public void stream(BooleanSupplier hurry) throws IOException {
        if (streamed || ended) {
            throw new IllegalStateException("A checkpoint is written once");
        }
        streamed = true;
        try {
            PartStreams.run(
                    own.values(), part -> part.stream(tensors.values(), output, of.chunk(), hurry));
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
    public void finish(JsonObject values) throws IOException {
        if (!streamed || ended) {
            throw new IllegalStateException("A checkpoint is finished once, after stream()");
        }
        try {
            Map<Integer, IndexedPart> files = new TreeMap<>();
            for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
                files.put(each.getKey(), each.getValue().sync());
            }
            if (first) {
                List<Integer> others =
                        IntStream.range(0, parts)
                                .filter(part -> !own.containsKey(part))
                                .boxed()
                                .toList();
                files.putAll(reports.await(others, timeout));
                complete(new ArrayList<>(files.values()), values);
            } else {
                DurableFiles.syncFolder(folder);
                for (Map.Entry<Integer, IndexedPart> each : files.entrySet()) {
                    reports.written(each.getKey(), each.getValue());
                }
            }
            ended = true;
        } catch (IOException e) {
            throw giveUp(cannotBeWritten(e));
        } catch (RuntimeException e) {
            throw giveUp(e);
        }
    }

    private void complete(List<IndexedPart> files, JsonObject values) throws IOException {
        CheckpointIndex index = new CheckpointIndex(step, mesh, files, tensors, values);
        PartFiles.open(folder, index).close(); // the parts fit each other
        IndexFiles.write(folder, index);
        DurableFiles.syncFolder(folder);
        DurableFiles.rename(folder, complete);
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
            removeOwn();
            if (!first) {
                for (int part : own.keySet()) {
                    reports.failed(part, String.valueOf(e.getMessage()));
                }
            }
        } catch (IOException | RuntimeException alsoFailed) {
            e.addSuppressed(alsoFailed);
        }
        return e;
    }

    private void removeOwn() throws IOException {
        for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
            each.getValue().remove();
            if (!first) {
                reports.withdraw(each.getKey());
            }
        }
        if (first) {
            of.giveUp(folder);
            DurableFiles.removeFolder(folder);
        }
    }

    /** Removes what was written, unless the checkpoint was finished. */
    @Override
    public void close() {
        if (!ended) {
            giveUp(new CheckpointException("it was given up"));
        }
    }
}
