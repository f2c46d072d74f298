package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsWriter;

import java.io.Closeable;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
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

    private static final long POLL_MILLIS = 20;
    private static final String WRITTEN = ".written";
    private static final String FAILED = ".failed";
    private static final String HALF = ".half";

    private final CheckpointFolder of;
    private final Path complete;
    private final Path folder; // until it is complete
    private final long step;
    private final String mesh;
    private final int parts;
    private final boolean first; // the process of rank 0
    private final Duration timeout;
    private final UnaryOperator<WritableByteChannel> output;
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
        complete = of.getPath().resolve(CheckpointFolder.nameOf(step));
        this.folder = folder;
        this.step = step;
        this.mesh = mesh;
        this.parts = parts;
        first = of.isFirst();
        timeout = of.timeout();
        output = of.output();
        for (int part : own) {
            if (part < 0 || part >= parts) {
                throw new IllegalArgumentException("There is no part " + part + " of " + parts);
            }
            this.own.put(part, new PartWriter(folder, part, parts));
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
        put(name, part, out -> PartWriter.stream(array, out));
    }

    /** Says where the bytes of a part of this process come from. */
    void put(String name, int part, PartWriter.Source source) {
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
     * Writes the parts of this process, a chunk at a time from the memory of the arrays. When it
     * returns, the arrays may change; the files are not synced yet.
     *
     * @throws IOException if they cannot be written; what was written is removed
     * @throws IllegalStateException if an array is missing
     */
    public void stream() throws IOException {
        if (streamed || ended) {
            throw new IllegalStateException("A checkpoint is written once");
        }
        streamed = true;
        try {
            for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
                SafetensorsWriter.Builder file =
                        SafetensorsWriter.builder()
                                .optMetadata("format", "pt")
                                .optMetadata("step", Long.toString(step))
                                .optMetadata("part", each.getKey() + " of " + parts);
                each.getValue().stream(tensors.values(), file, output);
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
    public void finish(JsonObject values) throws IOException {
        if (!streamed || ended) {
            throw new IllegalStateException("A checkpoint is finished once, after stream()");
        }
        try {
            Map<Integer, CheckpointIndex.Part> files = new TreeMap<>();
            for (Map.Entry<Integer, PartWriter> each : own.entrySet()) {
                files.put(each.getKey(), each.getValue().sync());
            }
            if (first) {
                List<Integer> others =
                        IntStream.range(0, parts)
                                .filter(part -> !own.containsKey(part))
                                .boxed()
                                .toList();
                files.putAll(await(others));
                complete(new ArrayList<>(files.values()), values);
            } else {
                DurableFiles.syncFolder(folder);
                for (Map.Entry<Integer, CheckpointIndex.Part> each : files.entrySet()) {
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

    private void complete(List<CheckpointIndex.Part> files, JsonObject values) throws IOException {
        CheckpointIndex index = new CheckpointIndex(step, mesh, files, tensors, values);
        Checkpoint.open(folder, index).close(); // the parts fit each other
        index.write(folder);
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
                    tell(
                            part,
                            FAILED,
                            String.valueOf(e.getMessage()).getBytes(StandardCharsets.UTF_8));
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
                withdraw(each.getKey());
            }
        }
        if (first) {
            of.giveUp(folder);
            DurableFiles.removeFolder(folder);
        }
    }

    /**
     * Tells the process of rank 0 about a part, by a small file beside it: processes share nothing
     * else on the threads that write.
     */
    private void tell(int part, String kind, byte[] text) throws IOException {
        Path report = report(part, kind);
        Path half = report.resolveSibling(report.getFileName() + HALF);
        DurableFiles.write(half, text);
        Files.move(half, report, StandardCopyOption.ATOMIC_MOVE);
    }

    private Path report(int part, String kind) {
        return folder.resolve("part-" + part + "-of-" + parts + kind);
    }

    /**
     * Waits for the parts that other processes write.
     *
     * @throws CheckpointException if one failed or is late
     */
    private Map<Integer, CheckpointIndex.Part> await(Collection<Integer> others)
            throws IOException {
        Map<Integer, CheckpointIndex.Part> found = new TreeMap<>();
        TreeSet<Integer> missing = new TreeSet<>(others);
        long end = System.nanoTime() + timeout.toNanos();
        while (true) {
            for (int part : others) {
                if (missing.contains(part) && isThere(part)) {
                    Path report = report(part, WRITTEN);
                    found.put(part, CheckpointIndex.Part.decode(Files.readAllBytes(report)));
                    Files.delete(report);
                    missing.remove(part);
                }
            }
            if (missing.isEmpty()) {
                return found;
            }
            if (System.nanoTime() - end > 0) {
                throw new CheckpointException(
                        String.format(
                                "parts %s of %d were not written within %d s: their processes have"
                                        + " ended, or see another folder than this one",
                                missing, parts, timeout.toSeconds()));
            }
            sleep();
        }
    }

    private boolean isThere(int part) throws IOException {
        Path failed = report(part, FAILED);
        if (Files.exists(failed)) {
            throw new CheckpointException(
                    "the process of part " + part + " failed: " + Files.readString(failed));
        }
        return Files.exists(report(part, WRITTEN));
    }

    private static void sleep() throws InterruptedIOException {
        try {
            Thread.sleep(POLL_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while waiting for other processes");
        }
    }

    /** Removes what this process has said of a part. */
    private void withdraw(int part) throws IOException {
        Files.deleteIfExists(report(part, WRITTEN));
        Files.deleteIfExists(report(part, WRITTEN + HALF));
        Files.deleteIfExists(report(part, FAILED + HALF));
    }

    /** Removes what was written, unless the checkpoint was finished. */
    @Override
    public void close() {
        if (!ended) {
            giveUp(new CheckpointException("it was given up"));
        }
    }
}
