package io.djltp.report;

import ai.djl.training.Trainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import java.util.zip.CRC32C;

/**
 * Writes the figures of a training for TensorBoard: the loss and the throughput of each step, and
 * what evaluators have found of each epoch. {@code tensorboard --logdir FOLDER} shows them while it
 * runs; a folder in which each training has a folder of its own compares them.
 *
 * <p>As {@link TrainingReport}, it comes after DJL's listeners, and {@link #addStep} serves loops
 * that notify none. A file that cannot be written to any more is a warning, once.
 */
public final class TensorBoardListener extends TrainingFigures {

    private static final Logger logger = LoggerFactory.getLogger(TensorBoardListener.class);

    private final Path folder;
    private EventFile file;
    private boolean failed;

    /**
     * Creates a listener. Its file is made with the first figure.
     *
     * @param folder the folder, which need not be there
     */
    public TensorBoardListener(Path folder) {
        this.folder = folder;
    }

    @Override
    void accept(String chart, String name, String unit, long step, double value) {
        if (failed) {
            return;
        }
        try {
            if (file == null) {
                file = new EventFile(folder);
            }
            file.add(chart + '/' + name, step, value);
        } catch (IOException e) {
            failed = true;
            logger.warn("The figures cannot be written to {}: {}", folder, e.toString());
        }
    }

    @Override
    void endStep(Trainer trainer, double seconds) {
        // accept has written all that there is
    }

    @Override
    void begin(Trainer trainer) {
        // nothing is measured between steps
    }

    /** Closes the file. */
    @Override
    public void close() {
        try {
            if (file != null) {
                file.close();
            }
        } catch (IOException e) {
            logger.warn("The figures in {} may not be complete: {}", folder, e.toString());
        }
        file = null;
        failed = true; // nothing comes after the end
    }

    /**
     * A file of scalars as TensorBoard reads them: records of TFRecord, each a message {@code
     * Event} of TensorFlow's protocol buffers.
     *
     * <p>A record is its length in 8 bytes, a checksum of these, the message, and a checksum of
     * that. The checksum is CRC-32C, turned right by 15 bits and shifted by a constant, because
     * records may hold checksums of their own. Of the messages, four fields are used: {@code
     * wall_time} = 1, {@code step} = 2, {@code file_version} = 3 and {@code summary} = 5 with
     * {@code value} = 1 {tag = 1, simple_value = 2}.
     */
    static final class EventFile implements Closeable {

        private static final int CHECKSUM_SHIFT = 0xa282ead8;
        private static final int VARINT = 0; // the wire types of protocol buffers
        private static final int FIXED64 = 1;
        private static final int BYTES = 2;
        private static final int FIXED32 = 5;

        private final FileChannel channel;

        EventFile(Path folder) throws IOException {
            Files.createDirectories(folder);
            double now = System.currentTimeMillis() / 1e3;
            String name =
                    String.format(
                            Locale.ROOT,
                            "events.out.tfevents.%010d.%s.%d",
                            (long) now,
                            host(),
                            ProcessHandle.current().pid());
            channel =
                    FileChannel.open(
                            folder.resolve(name),
                            StandardOpenOption.CREATE,
                            StandardOpenOption.WRITE,
                            StandardOpenOption.APPEND);
            ByteBuffer event = buffer(64);
            event.put(key(1, FIXED64)).putDouble(now);
            putBytes(event, 3, "brain.Event:2".getBytes(StandardCharsets.US_ASCII));
            write(event.flip());
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
            putBytes(summary, 1, bytes(scalar.flip()));
            ByteBuffer event = buffer(summary.position() + 32);
            event.put(key(1, FIXED64)).putDouble(System.currentTimeMillis() / 1e3);
            event.put(key(2, VARINT));
            putVarint(event, step);
            putBytes(event, 5, bytes(summary.flip()));
            write(event.flip());
        }

        private void write(ByteBuffer message) throws IOException {
            int length = message.remaining();
            ByteBuffer record = buffer(length + 16);
            record.putLong(length);
            record.putInt(checksum(record.duplicate().flip()));
            record.put(message.duplicate());
            record.putInt(checksum(message.duplicate()));
            record.flip();
            while (record.hasRemaining()) {
                channel.write(record);
            }
        }

        private static int checksum(ByteBuffer bytes) {
            CRC32C crc = new CRC32C();
            crc.update(bytes);
            return Integer.rotateRight((int) crc.getValue(), 15) + CHECKSUM_SHIFT;
        }

        private static ByteBuffer buffer(int size) {
            return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
        }

        private static byte[] bytes(ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            return bytes;
        }

        private static byte key(int field, int wireType) {
            return (byte) (field << 3 | wireType);
        }

        private static void putBytes(ByteBuffer buffer, int field, byte[] bytes) {
            buffer.put(key(field, BYTES));
            putVarint(buffer, bytes.length);
            buffer.put(bytes);
        }

        private static void putVarint(ByteBuffer buffer, long value) {
            long rest = value;
            while ((rest & ~0x7fL) != 0) {
                buffer.put((byte) (rest & 0x7f | 0x80));
                rest >>>= 7;
            }
            buffer.put((byte) rest);
        }

        /** {@inheritDoc} */
        @Override
        public void close() throws IOException {
            channel.close();
        }
    }
}
