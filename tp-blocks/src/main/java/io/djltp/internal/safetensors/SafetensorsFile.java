package io.djltp.internal.safetensors;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;
import com.google.gson.Strictness;
import com.google.gson.annotations.SerializedName;
import com.google.gson.reflect.TypeToken;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.MalformedJsonException;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.BFloat16;
import io.djltp.internal.torch.TensorBuffers;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A safetensors file that is read by slice: of a tensor only the bytes that are asked for, into the
 * memory of the array. Several threads may read at once.
 *
 * <p>A file begins with eight bytes that hold the length n of the header, little-endian, then n
 * bytes of JSON: one member a tensor with {@code dtype}, {@code shape} and {@code data_offsets},
 * and {@code __metadata__} with strings. The bytes of the tensors follow in row-major order,
 * little-endian, without gaps (<a href="https://github.com/huggingface/safetensors">Hugging Face,
 * format of safetensors</a>).
 *
 * <p>DJL's PyTorch engine has no arrays of bfloat16: such a tensor becomes float32, without loss.
 */
public final class SafetensorsFile implements Closeable {

    /** The bytes of the length. */
    static final int PREFIX = 8;

    private static final String LFS = "version "; // what a pointer of Git LFS begins with

    /** The key of the header that is no tensor. */
    static final String METADATA = "__metadata__";

    /** The longest header that the format allows, so that a broken file is not read as one. */
    private static final long LIMIT = 100_000_000;

    private static final Gson GSON = new Gson();

    private final Path path;
    private final FileChannel channel;
    private final long dataStart;
    private final Map<String, StoredTensor> tensors = new LinkedHashMap<>();
    private final Map<String, String> metadata = new LinkedHashMap<>();
    private final AtomicLong bytesRead = new AtomicLong();

    /** A tensor in the JSON of a header. */
    record Entry(String dtype, long[] shape, @SerializedName("data_offsets") long[] offsets) {}

    private SafetensorsFile(Path path, FileChannel channel, String header, long dataStart)
            throws IOException {
        this.path = path;
        this.channel = channel;
        this.dataStart = dataStart;
        List<StoredTensor> found = parse(header);
        found.sort(
                Comparator.comparingLong(StoredTensor::begin)
                        .thenComparingLong(StoredTensor::bytes));
        long at = 0;
        for (StoredTensor tensor : found) {
            if (tensor.begin() != at) {
                throw new IOException(
                        ("tensor %s begins at byte %d and not at %d, where the one before ends")
                                .formatted(tensor.name(), tensor.begin(), at));
            }
            at += tensor.bytes();
            tensors.put(tensor.name(), tensor);
        }
        if (at != channel.size() - dataStart) {
            throw new IOException(
                    "its tensors have %d bytes, and the file has %d for them"
                            .formatted(at, channel.size() - dataStart));
        }
    }

    private List<StoredTensor> parse(String header) throws IOException {
        List<StoredTensor> found = new ArrayList<>();
        String at = "its beginning";
        try (JsonReader reader = new JsonReader(new StringReader(header))) {
            reader.setStrictness(Strictness.STRICT);
            reader.beginObject();
            while (reader.hasNext()) {
                at = reader.nextName();
                if (at.equals(METADATA)) {
                    metadata.putAll(GSON.fromJson(reader, new TypeToken<Map<String, String>>() {}));
                } else {
                    found.add(tensor(at, GSON.fromJson(reader, Entry.class)));
                }
            }
            reader.endObject();
            reader.peek(); // fails if there is anything but spaces
            return found;
        } catch (JsonParseException
                | IllegalStateException
                | ArithmeticException
                | MalformedJsonException
                | EOFException e) {
            throw new IOException("its header is no JSON of tensors, at " + at, e);
        }
    }

    private static StoredTensor tensor(String name, Entry entry) throws IOException {
        if (entry.dtype == null
                || entry.shape == null
                || entry.offsets == null
                || entry.offsets.length != 2) {
            throw new IOException("tensor " + name + " has no dtype, shape or data_offsets");
        }
        long bytes = entry.offsets[1] - entry.offsets[0];
        StoredTensor tensor =
                new StoredTensor(
                        name, entry.dtype, new Shape(entry.shape), entry.offsets[0], bytes);
        DataType type = tensor.findDataType();
        long expected = type == null ? bytes : type.getNumOfBytes();
        for (int i = 0; type != null && i < entry.shape.length; i++) {
            expected = Math.multiplyExact(expected, entry.shape[i]);
        }
        if (bytes < 0 || bytes != expected) {
            throw new IOException(
                    "tensor %s %s %s has %d bytes, which are not its %d"
                            .formatted(name, tensor.type(), tensor.shape(), bytes, expected));
        }
        return tensor;
    }

    /**
     * Opens a file and reads its header.
     *
     * @param path the file
     * @return the file
     * @throws IOException if it cannot be read, or is not whole: what is wrong, and with which file
     */
    public static SafetensorsFile open(Path path) throws IOException {
        FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
        try {
            ByteBuffer prefix = ByteBuffer.allocate(PREFIX).order(ByteOrder.LITTLE_ENDIAN);
            readFully(channel, prefix, 0);
            String begin = new String(prefix.array(), StandardCharsets.US_ASCII);
            if (begin.equals(LFS)) {
                throw new IOException(
                        "it is a pointer of Git LFS, not the weights. Download them: git lfs pull");
            }
            long length = prefix.flip().getLong();
            long limit = Math.min(LIMIT, channel.size() - PREFIX);
            boolean broken = length < 0 || length > limit;
            if (broken && (begin.startsWith("<") || begin.startsWith("{"))) {
                throw new IOException(
                        "it is text, such as the answer of a server that wants a login or a"
                                + " licence accepted. Accept the licence of the model, and"
                                + " download it with a token: hf auth login");
            }
            if (broken) {
                throw new IOException(
                        "its header would have %s bytes, and can have %d"
                                .formatted(Long.toUnsignedString(length), limit));
            }
            byte[] json = new byte[(int) length];
            readFully(channel, ByteBuffer.wrap(json), PREFIX);
            String header = new String(json, StandardCharsets.UTF_8);
            return new SafetensorsFile(path, channel, header, PREFIX + length);
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw new IOException(path + " is not a whole safetensors file: " + e.getMessage(), e);
        }
    }

    /**
     * Returns the tensors.
     *
     * @return the tensors by name, in the order of their bytes
     */
    public Map<String, StoredTensor> getTensors() {
        return Collections.unmodifiableMap(tensors);
    }

    /**
     * Returns a tensor.
     *
     * @param name its name
     * @return the tensor
     * @throws IOException if the file has none of this name
     */
    public StoredTensor getTensor(String name) throws IOException {
        StoredTensor tensor = tensors.get(name);
        if (tensor == null) {
            throw new IOException(path + " has no tensor " + name + ", but " + tensors.keySet());
        }
        return tensor;
    }

    /**
     * Returns what else the header says.
     *
     * @return texts by key
     */
    public Map<String, String> getMetadata() {
        return Collections.unmodifiableMap(metadata);
    }

    /**
     * Returns where the bytes of tensors begin.
     *
     * @return the bytes of the header, the length before it included
     */
    public long getDataStart() {
        return dataStart;
    }

    /**
     * Returns how many bytes of tensors were read so far.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        return bytesRead.get();
    }

    /**
     * Reads bytes of a tensor, as many as the buffer has place for, which the tensor has to have.
     *
     * @param tensor the tensor, of this file
     * @param start the first byte, counted from the tensor's first
     * @param target where the bytes go: row-major elements, little-endian
     * @throws IOException if they cannot be read
     */
    public void read(StoredTensor tensor, long start, ByteBuffer target) throws IOException {
        bytesRead.addAndGet(target.remaining());
        readFully(channel, target, dataStart + tensor.begin() + start);
    }

    /**
     * Reads a whole tensor.
     *
     * @param name its name
     * @param manager the manager of the array, whose device it gets
     * @return the array
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if DJL has no such data type
     */
    public NDArray read(String name, NDManager manager) throws IOException {
        StoredTensor tensor = getTensor(name);
        List<ShardRange> all = List.of(new ShardRange(0, 1));
        return read(tensor, tensor.shape(), 1, tensor.bytes(), all, manager);
    }

    /**
     * Reads ranges of an axis of a tensor. Seen from an axis {@code a}, a tensor of shape {@code
     * [d0, .., dn]} is {@code d0 x .. x d(a-1)} blocks of {@code da x .. x dn} elements, and a
     * range is a run of neighbours in each of them: one run for a cut by rows, one a row for a cut
     * by columns.
     *
     * @param name its name
     * @param axis the axis
     * @param ranges the ranges, in the order in which the array has them
     * @param manager the manager of the array, whose device it gets
     * @return the array: the shape of the tensor, with the length of all ranges along the axis
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if the tensor has no such axis or range, or DJL no such data
     *     type
     */
    public NDArray read(String name, int axis, List<ShardRange> ranges, NDManager manager)
            throws IOException {
        StoredTensor tensor = getTensor(name);
        long[] shape = tensor.shape().getShape().clone();
        if (axis < 0 || axis >= shape.length) {
            throw Errors.argument("Tensor %s %s has no axis %s", name, tensor.shape(), axis);
        }
        for (ShardRange range : ranges) {
            if (range.end() > shape[axis]) {
                throw new IllegalArgumentException(
                        "Axis %d of tensor %s %s has no range %d to %d"
                                .formatted(axis, name, tensor.shape(), range.start(), range.end()));
            }
        }
        long length = shape[axis];
        long step = tensor.dataType().getNumOfBytes(); // of an index of the axis
        for (int i = axis + 1; i < shape.length; i++) {
            step *= shape[i];
        }
        shape[axis] = ranges.stream().mapToLong(ShardRange::length).sum();
        return read(tensor, new Shape(shape), length, step, ranges, manager);
    }

    /** Reads the ranges of each block of so many steps of so many bytes. */
    private NDArray read(
            StoredTensor tensor,
            Shape shape,
            long length,
            long step,
            List<ShardRange> ranges,
            NDManager manager)
            throws IOException {
        boolean brain = tensor.dataType() == DataType.BFLOAT16;
        try (NDManager host = manager.newSubManager(Device.cpu())) {
            NDArray array = host.create(shape, brain ? BFloat16.BITS : tensor.dataType());
            ByteBuffer[] memory = TensorBuffers.of(array);
            long blocks = length * step == 0 ? 0 : tensor.bytes() / (length * step);
            for (long i = 0; i < blocks; i++) {
                for (ShardRange range : ranges) {
                    long start = (i * length + range.start()) * step;
                    fill(memory, tensor, start, range.length() * step);
                }
            }
            if (brain) {
                array = BFloat16.toFloat32(array, host);
            }
            if (manager.getDevice().isGpu()) {
                array = array.toDevice(manager.getDevice(), true);
            }
            array.attach(manager);
            return array;
        }
    }

    /** Reads the bytes that follow those that are in the memory already. */
    private void fill(ByteBuffer[] memory, StoredTensor tensor, long start, long bytes)
            throws IOException {
        long done = 0;
        for (ByteBuffer buffer : memory) {
            int limit = buffer.limit();
            int count = (int) Math.min(bytes - done, buffer.remaining());
            read(tensor, start + done, buffer.limit(buffer.position() + count));
            buffer.limit(limit);
            done += count;
        }
    }

    private static void readFully(FileChannel channel, ByteBuffer target, long position)
            throws IOException {
        long at = position;
        while (target.hasRemaining()) {
            int count = channel.read(target, at);
            if (count < 0) {
                throw new EOFException("the file ends at byte " + at);
            }
            at += count;
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        channel.close();
    }
}
