package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.Shape;

import io.djltp.safetensors.SafetensorsWriter;
import io.djltp.safetensors.StoredTensor;

import java.io.Closeable;
import java.io.IOException;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.function.UnaryOperator;

/** Writes the file of one part: first all its bytes, then they are synced. */
final class PartWriter implements Closeable {

    private static final int ALIGNMENT = 8; // of the first tensor, by the format

    private final Path folder;
    private final long step;
    private final int part;
    private final int parts;
    private final Map<String, ArraySource> sources = new LinkedHashMap<>();
    private PartFile file;
    private BlockChecksums checksums;

    PartWriter(Path folder, long step, int part, int parts) {
        this.folder = folder;
        this.step = step;
        this.part = part;
        this.parts = parts;
    }

    void put(String name, ArraySource source) {
        sources.put(name, source);
    }

    /**
     * Writes the file.
     *
     * @param tensors all tensors of the checkpoint
     * @param output what the bytes go through on their way
     * @param chunk the memory of direct writes
     * @param hurry whether the arrays are waited for
     * @throws IllegalStateException if the part has a tensor that was not put
     */
    void stream(
            Collection<CutTensor> tensors,
            UnaryOperator<WritableByteChannel> output,
            WriteChunk chunk,
            BooleanSupplier hurry)
            throws IOException {
        SafetensorsWriter.Builder builder =
                SafetensorsWriter.builder()
                        .optMetadata("format", "pt")
                        .optMetadata("step", Long.toString(step))
                        .optMetadata("part", part + " of " + parts)
                        .optMetadata(CutChecksum.KEY, CutChecksum.of(tensors, part));
        long bytes = 0;
        for (CutTensor tensor : tensors) {
            if (tensor.isIn(part)) {
                if (!sources.containsKey(tensor.name())) {
                    throw new IllegalStateException(
                            "Part " + part + " of tensor " + tensor.name() + " was not put");
                }
                Shape shape = tensor.getShardShape(part);
                builder.addTensor(tensor.name(), tensor.type(), shape);
                bytes += shape.size() * tensor.type().getNumOfBytes();
            }
        }
        file = new PartFile(path(), bytes, chunk, hurry);
        ChecksummedChannel out = new ChecksummedChannel(output.apply(file), file);
        begin(builder);
        SafetensorsWriter writer = builder.build(out);
        for (List<ArraySource> group : groups(tensors)) {
            stream(group, writer, out);
        }
        writer.finish();
        file.finish();
        sources.clear(); // the arrays are the trainer's again
        checksums = out.checksums();
    }

    /** Lets the largest array lie in the file as in memory, so that it needs no copy. */
    private void begin(SafetensorsWriter.Builder builder) {
        StoredTensor largest = null;
        for (StoredTensor each : builder.getTensors().values()) {
            largest = largest == null || each.bytes() > largest.bytes() ? each : largest;
        }
        ArrayMemory memory = largest == null ? null : sources.get(largest.name()).memory();
        if (memory != null && file.unit() > 0) {
            long behind = memory.behind(file.unit()) - largest.begin();
            if (behind % ALIGNMENT == 0) {
                builder.optBegin(file.unit(), Math.floorMod(behind, file.unit()));
            }
        }
    }

    /** Returns weights, each with what is kept of it, if that follows: {@code name/array}. */
    private List<List<ArraySource>> groups(Collection<CutTensor> tensors) {
        List<List<ArraySource>> groups = new ArrayList<>();
        String kept = null;
        for (CutTensor tensor : tensors) {
            if (!tensor.isIn(part)) {
                continue;
            }
            if (kept == null || !tensor.name().startsWith(kept)) {
                groups.add(new ArrayList<>());
                kept = tensor.name() + "/";
            }
            groups.get(groups.size() - 1).add(sources.get(tensor.name()));
        }
        return groups;
    }

    /** Writes what changes together in turns where it can, and else one after the other. */
    private static void stream(
            List<ArraySource> group, SafetensorsWriter writer, ChecksummedChannel out)
            throws IOException {
        List<ArrayMemory> arrays = new ArrayList<>();
        for (ArraySource each : group) {
            ArrayMemory memory = group.size() < 2 ? null : each.memory();
            if (memory != null && memory.bytes() >= BlockChecksums.BLOCK) {
                arrays.add(memory);
            }
        }
        if (arrays.size() == group.size()) {
            ArrayTurns.write(arrays, writer, out);
            return;
        }
        for (ArraySource each : group) {
            each.stream(writer);
        }
    }

    /** Brings the file to the disk and closes it. */
    IndexedPart sync() throws IOException {
        file.sync();
        file.close();
        return new IndexedPart(path().getFileName().toString(), checksums);
    }

    private Path path() {
        return folder.resolve(StepNames.part(part, parts));
    }

    /** Removes the file. */
    void remove() throws IOException {
        close();
        Files.deleteIfExists(path());
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
