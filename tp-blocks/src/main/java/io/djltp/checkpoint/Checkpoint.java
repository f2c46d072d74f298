package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;

import io.djltp.checkpoint.TensorReader.PartFile;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.internal.torch.TensorBuffers;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.IOException;
import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/**
 * A complete checkpoint, of which any ranges are read, whatever parts they lie in. What is read is
 * checked: an array is as it was written, or there is none. Several threads may read at once.
 */
public final class Checkpoint implements Closeable {

    private final Path path;
    private final CheckpointIndex index;
    private final List<PartFile> files = new ArrayList<>();
    private final AtomicLong bytesRead = new AtomicLong();
    private final Queue<TensorReader> idle = new ConcurrentLinkedQueue<>(); // with their chunks

    private Checkpoint(Path path, CheckpointIndex index) {
        this.path = path;
        this.index = index;
    }

    /**
     * Opens a checkpoint.
     *
     * @param path its folder, such as {@code out/step-00000120}
     * @return the checkpoint
     * @throws CheckpointException if it is damaged or incomplete, or of another version
     * @throws IOException if it cannot be read
     */
    public static Checkpoint open(Path path) throws IOException {
        CheckpointIndex index = CheckpointIndex.read(path);
        OptionalLong named =
                CheckpointFolder.stepOf(String.valueOf(path.toAbsolutePath().getFileName()));
        if (named.isPresent() && named.getAsLong() != index.step()) {
            throw new CheckpointException(
                    "%s has the index of step %s: rename it to that step"
                            .formatted(path, index.step()));
        }
        return open(path, index);
    }

    /**
     * Returns the complete checkpoints of a folder, which a run may use.
     *
     * @param folder the folder of checkpoints
     * @return what {@link #open} opens, by step
     * @throws CheckpointException if there is no such folder, or a file has the name of a
     *     checkpoint
     * @throws IOException if it cannot be read
     */
    public static NavigableMap<Long, Path> list(Path folder) throws IOException {
        CheckpointFolder opened = CheckpointFolder.read(folder);
        NavigableMap<Long, Path> all = new TreeMap<>();
        opened.getSteps().forEach(step -> all.put(step, opened.folderOf(step)));
        return all;
    }

    /**
     * Opens the files of a checkpoint, and checks that they fit its index.
     *
     * @throws CheckpointException if one is missing or damaged, or has something else
     */
    static Checkpoint open(Path path, CheckpointIndex index) throws IOException {
        Checkpoint checkpoint = new Checkpoint(path, index);
        checkpoint.checkNoneMissing();
        try {
            for (int part = 0; part < index.parts().size(); part++) {
                checkpoint.files.add(new PartFile(path, index, part, checkpoint.bytesRead));
            }
            return checkpoint;
        } catch (IOException | RuntimeException e) {
            checkpoint.close();
            throw e;
        }
    }

    private void checkNoneMissing() throws CheckpointException {
        List<String> missing =
                getFiles().stream()
                        .filter(file -> !Files.isRegularFile(path.resolve(file)))
                        .toList();
        if (!missing.isEmpty()) {
            throw new CheckpointException(
                    String.format(
                            "%s is not whole: %s %s missing. Copy %s back, or use another"
                                    + " checkpoint",
                            path,
                            String.join(", ", missing),
                            missing.size() == 1 ? "is" : "are",
                            missing.size() == 1 ? "it" : "them"));
        }
    }

    /**
     * Returns the folder.
     *
     * @return the path
     */
    public Path getPath() {
        return path;
    }

    /**
     * Returns the step after which it was taken.
     *
     * @return the step
     */
    public long getStep() {
        return index.step();
    }

    /**
     * Returns the ranks of the run that wrote it.
     *
     * @return the mesh, for people to read
     */
    public String getMesh() {
        return index.mesh();
    }

    /**
     * Returns the files of tensors.
     *
     * @return their names, one a part
     */
    public List<String> getFiles() {
        int parts = index.parts().size();
        return IntStream.range(0, parts)
                .mapToObj(part -> CheckpointIndex.fileName(part, parts))
                .toList();
    }

    /**
     * Returns what else the checkpoint holds.
     *
     * @return a copy of the values
     */
    public JsonObject getValues() {
        return index.values().deepCopy();
    }

    /**
     * Reads a member of the values of a checkpoint, before anything is changed.
     *
     * @param name the name of the member
     * @param type what it is
     * @throws CheckpointException if it is something else; it names the file and the member
     */
    <T extends Record> T getValues(String name, Class<T> type) throws CheckpointException {
        try {
            JsonObject json = index.values().getAsJsonObject(name);
            for (RecordComponent each : type.getRecordComponents()) {
                if (!json.has(each.getName())) {
                    throw new JsonParseException(each.getName() + " is missing");
                }
            }
            return CheckpointIndex.GSON.fromJson(json, type);
        } catch (JsonParseException | IllegalStateException | ClassCastException e) {
            throw new CheckpointException(
                    ("%s cannot be used: values.%s is not what this library writes: %s. Use another"
                                    + " checkpoint")
                            .formatted(path.resolve(CheckpointIndex.FILE), name, e.getMessage()));
        }
    }

    /**
     * Returns the tensors.
     *
     * @return the tensors by name, in the order in which they were declared
     */
    public Map<String, CutTensor> getTensors() {
        return Collections.unmodifiableMap(index.tensors());
    }

    /** Returns the tensor of a name, or throws CheckpointException if there is none. */
    CutTensor getTensor(String name) throws CheckpointException {
        CutTensor tensor = index.tensors().get(name);
        if (tensor == null) {
            throw new CheckpointException(
                    "%s has no tensor %s, but %s".formatted(path, name, index.tensors().keySet()));
        }
        return tensor;
    }

    /**
     * Returns the weights: the tensors but what optimizers and blocks keep.
     *
     * @return the names of tensors by those of parameters; one that blocks share under each of its
     *     names, that of the first block first. Of a checkpoint that is not of a trainer those
     *     without a slash, since what is kept of a parameter is called {@code parameter/array}
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public Map<String, String> getWeights() throws CheckpointException {
        TrainerValues.Saved trainer = TrainerValues.read(this);
        if (trainer != null) {
            return trainer.named();
        }
        Map<String, String> weights = new LinkedHashMap<>();
        index.tensors().keySet().stream()
                .filter(name -> !name.contains("/") && !name.isEmpty())
                .forEach(name -> weights.put(name, name));
        return weights;
    }

    /**
     * Returns the margins that heads were trained with, without which the logits of their weights
     * are others.
     *
     * @return the margins by the names of the weights' tensors; none of a checkpoint that is not of
     *     a trainer
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public Map<String, Margin> getMargins() throws CheckpointException {
        TrainerValues.Saved trainer = TrainerValues.read(this);
        return trainer == null ? Map.of() : trainer.margins();
    }

    /**
     * Reads a whole tensor.
     *
     * @param name its name
     * @param manager the manager of the array, whose device it gets
     * @return the array
     * @throws CheckpointException if there is none of this name, or it is damaged
     * @throws IOException if it cannot be read
     */
    public NDArray read(String name, NDManager manager) throws IOException {
        return read(name, 0, null, manager);
    }

    /**
     * Reads ranges of an axis of a tensor: the blocks of the files that hold them, and no others.
     *
     * @param name its name
     * @param axis the axis, whether the tensor is cut along it or not
     * @param ranges the ranges, in the order in which the array has them, or {@code null} for the
     *     whole tensor
     * @param manager the manager of the array, whose device it gets
     * @return the array: the shape of the tensor, with the length of all ranges along the axis
     * @throws CheckpointException if there is none of this name, or it is damaged
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if the tensor has no such axis or range
     */
    public NDArray read(String name, int axis, @Nullable List<ShardRange> ranges, NDManager manager)
            throws IOException {
        CutTensor tensor = getTensor(name);
        check(tensor, axis, ranges);
        Device device = manager.getDevice();
        try (NDManager host = manager.newSubManager(Device.cpu())) {
            Shape shape = new Shape(TensorReader.shape(tensor, axis, ranges));
            NDArray array = host.create(shape, tensor.type());
            readInto(name, axis, ranges, array);
            if (device.isGpu()) {
                array = array.toDevice(device, true);
            }
            array.attach(manager);
            return array;
        }
    }

    /**
     * Reads ranges of an axis of a tensor into the memory of an array, without a second copy.
     *
     * @param name its name
     * @param axis the axis, whether the tensor is cut along it or not
     * @param ranges the ranges, in the order in which the array has them, or {@code null} for the
     *     whole tensor
     * @param target a contiguous array in host memory, of the tensor's data type and the size of
     *     the ranges; its shape may be another. If the tensor is damaged, it has what was read
     *     before the damage
     */
    void readInto(String name, int axis, @Nullable List<ShardRange> ranges, NDArray target)
            throws IOException {
        CutTensor tensor = getTensor(name);
        check(tensor, axis, ranges);
        Shape shape = new Shape(TensorReader.shape(tensor, axis, ranges));
        if (target.getDataType() != tensor.type() || target.size() != shape.size()) {
            throw Errors.argument(
                    "What is read of tensor %s is %s %s, and the array is %s %s",
                    name, tensor.type(), shape, target.getDataType(), target.getShape());
        }
        TensorReader reader = Objects.requireNonNullElseGet(idle.poll(), this::newReader);
        reader.read(tensor, axis, ranges, TensorBuffers.of(target));
        idle.add(reader);
    }

    private static void check(CutTensor tensor, int axis, @Nullable List<ShardRange> ranges) {
        if (ranges == null) {
            return;
        }
        if (axis < 0 || axis >= tensor.shape().dimension()) {
            throw new IllegalArgumentException(
                    "Tensor %s %s has no axis %s".formatted(tensor.name(), tensor.shape(), axis));
        }
        for (ShardRange range : ranges) {
            if (range.end() > tensor.shape().get(axis)) {
                throw Errors.argument(
                        "Axis %d of tensor %s %s has no range %d to %d",
                        axis, tensor.name(), tensor.shape(), range.start(), range.end());
            }
        }
    }

    /** Returns what puts tensors together, for one thread. */
    TensorReader newReader() {
        return new TensorReader(files);
    }

    /**
     * Returns how many bytes of files were read so far, those that were only checked included.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        return bytesRead.get();
    }

    /**
     * Reads every byte and checks it.
     *
     * @return what is damaged: the file, the bytes and how; empty if all is as it was written
     * @throws IOException if a file cannot be read
     */
    public List<String> verify() throws IOException {
        CheckpointIndex.read(path);
        List<String> damages = new ArrayList<>();
        for (PartFile file : files) {
            damages.addAll(file.check());
        }
        return damages;
    }

    /**
     * Writes the checkpoint again with another number of parts, one part of a tensor at a time. It
     * can be loaded at any size as it is; with as many parts as there are ranks, what a rank needs
     * of a tensor is in one file.
     *
     * <p>Each axis that was cut is cut into balanced ranges: how a stacked weight would be cut for
     * so many ranks is known to its layer only, and its ranks may need ranges of several parts.
     *
     * @param to the folder of checkpoints where it goes, under the same step
     * @param parts how many parts it gets, 1 or more
     * @return the new checkpoint
     * @throws CheckpointException if this is damaged, or there is one of its step
     * @throws IOException if this cannot be read, or the other not written
     */
    public Checkpoint reshard(Path to, int parts) throws IOException {
        List<Integer> own = IntStream.range(0, parts).boxed().toList();
        try (CheckpointFolder folder = CheckpointFolder.open(to);
                CheckpointWriter writer = folder.begin(getStep(), getMesh(), parts, own)) {
            for (CutTensor tensor : index.tensors().values()) {
                CutTensor other = tensor.cutInto(parts);
                writer.add(
                        other,
                        part -> {
                            Cut cut = other.cut();
                            List<ShardRange> ranges = cut == null ? null : cut.getRanges(part);
                            return out -> copy(other, part, ranges, out);
                        });
            }
            writer.stream();
            writer.finish(getValues());
            return folder.openStep(getStep());
        }
    }

    private void copy(
            CutTensor tensor, int part, @Nullable List<ShardRange> ranges, SafetensorsWriter out)
            throws IOException {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu());
                NDArray shard = read(tensor.name(), tensor.axis(), ranges, manager)) {
            CheckpointWriter.Source.of(tensor, part, shard).stream(out);
        }
    }

    /** Closes the files. */
    @Override
    public void close() throws IOException {
        for (PartFile file : files) {
            file.close();
        }
    }
}
