package io.djltp.spark.ml;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The rows of a task, in a file of its executor: the Java heap holds none of them. A record has the
 * features, 32 bits each, and the label, 64 bits.
 */
final class RowFile implements AutoCloseable {

    private static final int BUFFER = 1 << 20;

    private final FileChannel channel;
    private final ByteBuffer buffer;
    private final int recordBytes;
    private long rows;

    /**
     * Creates a file, which ends with this object.
     *
     * @param folder where the file is
     * @param width the number of features
     */
    RowFile(Path folder, int width) throws IOException {
        recordBytes = recordBytes(width);
        buffer = ByteBuffer.allocate(Math.max(recordBytes, BUFFER / recordBytes * recordBytes));
        Path file = Files.createTempFile(folder, "tp-rows", ".bin");
        channel =
                FileChannel.open(
                        file,
                        StandardOpenOption.READ,
                        StandardOpenOption.WRITE,
                        StandardOpenOption.DELETE_ON_CLOSE);
    }

    /** Returns the bytes of a record. */
    static int recordBytes(int width) {
        return width * Integer.BYTES + Long.BYTES;
    }

    /** Adds a record. */
    void add(byte[] record) throws IOException {
        if (buffer.remaining() < recordBytes) {
            flush();
        }
        buffer.put(record);
        rows++;
    }

    /** Writes what is still in memory. To be called after the last record. */
    void flush() throws IOException {
        buffer.flip();
        while (buffer.hasRemaining()) {
            channel.write(buffer);
        }
        buffer.clear();
    }

    /**
     * Reads a record.
     *
     * @param row its number
     * @param record where to
     */
    void read(long row, ByteBuffer record) throws IOException {
        record.clear().limit(recordBytes);
        while (record.hasRemaining()) {
            if (channel.read(record, row * recordBytes + record.position()) < 0) {
                throw new EOFException("Row %s of %s is not there".formatted(row, rows));
            }
        }
        record.flip();
    }

    /** Deletes the file. */
    @Override
    public void close() throws IOException {
        channel.close();
    }
}
