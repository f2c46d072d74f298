package io.djltp.internal.safetensors;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * Writes tensors to a safetensors file one after another, each in pieces of any size: nothing is
 * held in memory, and a tensor may be larger than 2 GiB.
 *
 * <p>Every tensor is declared first, since the header comes before the bytes; then all are written
 * in the order of their declaration.
 */
public final class SafetensorsWriter implements Closeable {

    private static final int ALIGNMENT = 8; // of the first tensor
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    private final WritableByteChannel out;
    private final Map<String, StoredTensor> tensors;
    private final long total;
    private long written; // bytes behind the header

    private SafetensorsWriter(WritableByteChannel out, Builder builder) throws IOException {
        this.out = out;
        tensors = builder.tensors;
        total = builder.bytes;
        drain(header(tensors, builder.metadata));
    }

    private static ByteBuffer header(
            Map<String, StoredTensor> tensors, Map<String, String> metadata) {
        Map<String, Object> json = new LinkedHashMap<>();
        if (!metadata.isEmpty()) {
            json.put(SafetensorsFile.METADATA, metadata);
        }
        for (StoredTensor each : tensors.values()) {
            long[] offsets = {each.begin(), each.begin() + each.bytes()};
            json.put(
                    each.name(),
                    new SafetensorsFile.Entry(each.type(), each.shape().getShape(), offsets));
        }
        String text = GSON.toJson(json);
        int bytes = text.getBytes(StandardCharsets.UTF_8).length + SafetensorsFile.PREFIX;
        byte[] padded =
                (text + " ".repeat(Math.floorMod(-bytes, ALIGNMENT)))
                        .getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(SafetensorsFile.PREFIX + padded.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(padded.length)
                .put(padded)
                .flip();
    }

    /**
     * Writes bytes of the next tensor, or of several.
     *
     * @param bytes the elements in row-major order, little-endian; read to their end
     * @throws IOException if they cannot be written
     */
    public void write(ByteBuffer bytes) throws IOException {
        written += bytes.remaining();
        drain(bytes);
    }

    private void drain(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            out.write(bytes);
        }
    }

    /**
     * Checks that all tensors are there. Does not close the channel.
     *
     * @throws IOException if there are other bytes than those of the tensors
     */
    public void finish() throws IOException {
        for (StoredTensor tensor : tensors.values()) {
            long missing = tensor.begin() + tensor.bytes() - written;
            if (missing > 0) {
                throw new IOException(
                        "tensor %s %s was not written to its end: %d of %d bytes are missing"
                                .formatted(tensor.name(), tensor.shape(), missing, tensor.bytes()));
            }
        }
        if (written > total) {
            throw new IOException(
                    "%d bytes were written, and the declared tensors have %d"
                            .formatted(written, total));
        }
    }

    /** Closes the channel. */
    @Override
    public void close() throws IOException {
        out.close();
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** What a file will hold. */
    public static final class Builder {

        private final Map<String, StoredTensor> tensors = new LinkedHashMap<>();
        private long bytes; // of all tensors
        private final Map<String, String> metadata = new TreeMap<>();

        private Builder() {}

        /**
         * Declares a tensor.
         *
         * @param name the name, which no other tensor has
         * @param type the data type
         * @param shape the shape
         * @return this builder
         * @throws IllegalArgumentException if there is a tensor of this name, or the format does
         *     not have the data type
         */
        public Builder addTensor(String name, DataType type, Shape shape) {
            if (tensors.containsKey(name) || SafetensorsFile.METADATA.equals(name)) {
                throw new IllegalArgumentException(
                        "A safetensors file cannot have a second tensor named " + name);
            }
            long size = shape.size() * type.getNumOfBytes();
            tensors.put(name, new StoredTensor(name, type.asSafetensors(), shape, bytes, size));
            bytes += size;
            return this;
        }

        /**
         * Adds a text to the header.
         *
         * @param key the key, such as {@code format}
         * @param value the text
         * @return this builder
         */
        public Builder optMetadata(String key, String value) {
            metadata.put(key, value);
            return this;
        }

        /**
         * Writes the header.
         *
         * @param out where the file goes; closed with the writer
         * @return the writer of the tensors
         * @throws IOException if the header cannot be written
         */
        public SafetensorsWriter build(WritableByteChannel out) throws IOException {
            return new SafetensorsWriter(out, this);
        }
    }
}
