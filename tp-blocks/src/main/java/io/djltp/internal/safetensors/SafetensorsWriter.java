package io.djltp.internal.safetensors;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Writes tensors to a safetensors file one after another, each in pieces of any size: nothing is
 * held in memory, and a tensor may be larger than 2 GiB.
 *
 * <p>Every tensor is declared first, since the header comes before the bytes; then all are written
 * in the order of their declaration.
 */
public final class SafetensorsWriter implements Closeable {

    private final WritableByteChannel out;
    private final SafetensorsHeader header;
    private final long total;
    private long written; // bytes behind the header

    private SafetensorsWriter(WritableByteChannel out, SafetensorsHeader header)
            throws IOException {
        this.out = out;
        this.header = header;
        total = header.getTensors().values().stream().mapToLong(StoredTensor::bytes).sum();
        drain(header.encode());
    }

    /**
     * Writes bytes of the next tensor, or of several.
     *
     * @param bytes the elements in row-major order, little-endian; read to their end
     * @throws IOException if they cannot be written, or are more than all tensors have
     */
    public void write(ByteBuffer bytes) throws IOException {
        if (bytes.remaining() > total - written) {
            throw new IOException(
                    String.format(
                            "%d bytes more than the declared tensors have, which are %d",
                            bytes.remaining() - (total - written), total));
        }
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
     * @throws IOException if bytes of a tensor are missing
     */
    public void finish() throws IOException {
        if (written == total) {
            return;
        }
        for (StoredTensor tensor : header.getTensors().values()) {
            if (written < tensor.begin() + tensor.bytes()) {
                throw new IOException(
                        String.format(
                                "tensor %s %s was not written to its end: %d of %d bytes",
                                tensor.name(),
                                tensor.shape(),
                                written - tensor.begin(),
                                tensor.bytes()));
            }
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
        private final Map<String, String> metadata = new LinkedHashMap<>();

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
            if (tensors.containsKey(name) || "__metadata__".equals(name)) {
                throw new IllegalArgumentException(
                        "A safetensors file cannot have a second tensor named " + name);
            }
            StoredTensor tensor = new StoredTensor(name, type.asSafetensors(), shape, bytes);
            tensors.put(name, tensor);
            bytes += tensor.bytes();
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
         * Returns the tensors and where each will lie.
         *
         * @return the tensors by name, in the order of their bytes
         */
        public Map<String, StoredTensor> getTensors() {
            return Collections.unmodifiableMap(tensors);
        }

        /**
         * Writes the header.
         *
         * @param out where the file goes; closed with the writer
         * @return the writer of the tensors
         * @throws IOException if the header cannot be written
         */
        public SafetensorsWriter build(WritableByteChannel out) throws IOException {
            return new SafetensorsWriter(
                    out, new SafetensorsHeader(new LinkedHashMap<>(tensors), metadata));
        }
    }
}
