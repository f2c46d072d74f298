package io.djltp.report;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * A file of scalars as TensorBoard reads them: records of TFRecord, each a message {@code Event} of
 * TensorFlow's protocol buffers.
 *
 * <p>A record is its length in 8 bytes, a checksum of these, the message, and a checksum of that.
 * The checksum is CRC-32C, turned right by 15 bits and shifted by a constant, because records may
 * hold checksums of their own. Of the messages, four fields are used: {@code wall_time} = 1, {@code
 * step} = 2, {@code file_version} = 3 and {@code summary} = 5 with {@code value} = 1 {tag = 1,
 * simple_value = 2}.
 */
final class EventFile implements Closeable {
    private static final int CHECKSUM_SHIFT = 0xa282ead8;
    private static final int VARINT = 0; // the wire types of protocol buffers
    private static final int FIXED64 = 1;
    private static final int BYTES = 2;
    private static final int FIXED32 = 5;

    private final OutputStream out;

    EventFile(Path folder) throws IOException {
        Files.createDirectories(folder);
        long seconds = System.currentTimeMillis() / 1000;
        long process = ProcessHandle.current().pid();
        String name = "events.out.tfevents.%010d.%s.%d".formatted(seconds, host(), process);
        out = Files.newOutputStream(folder.resolve(name));
        ByteBuffer version = buffer(16);
        putBytes(version, 3, "brain.Event:2".getBytes(StandardCharsets.US_ASCII));
        write(version);
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "localhost"; // a host that has a name nobody knows
        }
    }

    /** Appends a scalar. */
    void add(String tag, long step, double value) throws IOException {
        byte[] name = tag.getBytes(StandardCharsets.UTF_8);
        ByteBuffer scalar = buffer(name.length + 16);
        putBytes(scalar, 1, name);
        scalar.put(key(2, FIXED32)).putFloat((float) value);
        ByteBuffer summary = buffer(scalar.position() + 8);
        putBytes(summary, 1, bytes(scalar));
        ByteBuffer event = buffer(summary.position() + 24);
        event.put(key(2, VARINT));
        putVarint(event, step);
        putBytes(event, 5, bytes(summary));
        write(event);
    }

    /** Writes an event, which begins with the time. */
    private void write(ByteBuffer fields) throws IOException {
        ByteBuffer event = buffer(9 + fields.position());
        event.put(key(1, FIXED64)).putDouble(System.currentTimeMillis() / 1e3);
        event.put(fields.flip());
        ByteBuffer record = buffer(event.capacity() + 16).putLong(event.capacity());
        record.putInt(checksum(bytes(record)));
        record.put(event.array()).putInt(checksum(event.array()));
        out.write(record.array());
    }

    private static int checksum(byte... bytes) {
        CRC32C crc = new CRC32C();
        crc.update(bytes);
        return Integer.rotateRight((int) crc.getValue(), 15) + CHECKSUM_SHIFT;
    }

    private static ByteBuffer buffer(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static byte[] bytes(ByteBuffer written) {
        return Arrays.copyOf(written.array(), written.position());
    }

    private static byte key(int field, int wireType) {
        return (byte) (field << 3 | wireType);
    }

    private static void putBytes(ByteBuffer buffer, int field, byte... bytes) {
        buffer.put(key(field, BYTES));
        putVarint(buffer, bytes.length);
        buffer.put(bytes);
    }

    private static void putVarint(ByteBuffer buffer, long value) {
        long rest = value;
        for (; (rest & ~0x7fL) != 0; rest >>>= 7) {
            buffer.put((byte) (rest & 0x7f | 0x80));
        }
        buffer.put((byte) rest);
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        out.close();
    }
}
