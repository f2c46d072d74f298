package io.djltp.internal.safetensors;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A safetensors file that is read by place: of a tensor only the bytes that are asked for. Several
 * threads may read at once.
 */
public final class SafetensorsFile implements Closeable {

    private final Path path;
    private final FileChannel channel;
    private final SafetensorsHeader header;
    private final long dataStart;
    private final AtomicLong bytesRead = new AtomicLong();

    private SafetensorsFile(
            Path path, FileChannel channel, SafetensorsHeader header, long dataStart) {
        this.path = path;
        this.channel = channel;
        this.header = header;
        this.dataStart = dataStart;
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
            long size = channel.size();
            if (size < SafetensorsHeader.PREFIX) {
                throw new IOException("it has " + size + " bytes, less than a header");
            }
            ByteBuffer prefix = ByteBuffer.allocate(SafetensorsHeader.PREFIX);
            readFully(channel, prefix.order(ByteOrder.LITTLE_ENDIAN), 0);
            long length = prefix.flip().getLong();
            long limit = Math.min(SafetensorsHeader.LIMIT, size - SafetensorsHeader.PREFIX);
            if (length < 0 || length > limit) {
                throw new IOException(
                        "its header would have "
                                + Long.toUnsignedString(length)
                                + " bytes, and can have "
                                + limit);
            }
            byte[] json = new byte[(int) length];
            readFully(channel, ByteBuffer.wrap(json), SafetensorsHeader.PREFIX);
            long dataStart = SafetensorsHeader.PREFIX + length;
            SafetensorsHeader header = SafetensorsHeader.parse(json, size - dataStart);
            return new SafetensorsFile(path, channel, header, dataStart);
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
        return header.getTensors();
    }

    /**
     * Returns a tensor.
     *
     * @param name its name
     * @return the tensor
     * @throws IOException if the file has none of this name
     */
    public StoredTensor getTensor(String name) throws IOException {
        StoredTensor tensor = header.getTensors().get(name);
        if (tensor == null) {
            throw new IOException(
                    path + " has no tensor " + name + ", but " + header.getTensors().keySet());
        }
        return tensor;
    }

    /**
     * Returns what else the header says.
     *
     * @return texts by key
     */
    public Map<String, String> getMetadata() {
        return header.getMetadata();
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
     * Reads bytes of a tensor, as many as the buffer has place for.
     *
     * @param tensor the tensor, of this file
     * @param start the first byte, counted from the tensor's first
     * @param target where the bytes go: row-major elements, little-endian
     * @throws IOException if they cannot be read
     * @throws IndexOutOfBoundsException if the tensor does not have these bytes
     */
    public void read(StoredTensor tensor, long start, ByteBuffer target) throws IOException {
        if (start < 0 || start + target.remaining() > tensor.bytes()) {
            throw new IndexOutOfBoundsException(
                    String.format(
                            "bytes %d to %d of tensor %s, which has %d",
                            start, start + target.remaining(), tensor.name(), tensor.bytes()));
        }
        bytesRead.addAndGet(target.remaining());
        readFully(channel, target, dataStart + tensor.begin() + start);
    }

    /**
     * Returns how many bytes of tensors were read so far.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        return bytesRead.get();
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
