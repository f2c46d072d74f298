package io.djltp.checkpoint.store;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.function.BooleanSupplier;

/**
 * The file of a part while it is written, from its beginning to its end, or some blocks of it in
 * another order. Its bytes go to the disk past the page cache (O_DIRECT), which takes little of the
 * processor, and leaves in memory what the kernel had there: from where they lie, if their address
 * is a multiple of the file system's blocks where their place in the file is, and else through half
 * a chunk of memory. It takes as long as the disk takes, though. When training waits too long for
 * the arrays, and where the file system wants no direct writes, the rest goes through the page
 * cache.
 */
final class PartFile implements WritableByteChannel {

    private static final Logger logger = LoggerFactory.getLogger(PartFile.class);

    private final FileChannel file;
    private final WriteChunk spare;
    private final BooleanSupplier hurry;
    private FileChannel direct; // null once the rest goes through the page cache
    private ByteBuffer chunk; // what was not written yet; not null while direct is not
    private int unit; // what direct writes are multiples of
    private long place; // in the file, of the chunk: a multiple of the unit while there is one

    /**
     * Creates the file.
     *
     * @param path the file, which is not there yet
     * @param bytes about how many it will have: a small one goes through the page cache
     * @param spare the memory of direct writes
     * @param hurry whether the arrays are waited for too long
     */
    PartFile(Path path, long bytes, WriteChunk spare, BooleanSupplier hurry) throws IOException {
        this.spare = spare;
        this.hurry = hurry;
        file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        chunk = bytes < WriteChunk.SIZE ? null : spare.take(path);
        if (chunk != null) {
            try {
                direct = FileChannel.open(path, StandardOpenOption.WRITE, DirectOption.get());
                unit = (int) WriteChunk.block(path);
            } catch (IOException | UnsupportedOperationException e) {
                endDirect(e);
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public int write(ByteBuffer bytes) throws IOException {
        int count = bytes.remaining();
        if (direct != null && hurry.getAsBoolean()) {
            endDirect(null);
        }
        if (takesWithoutCopy(bytes)) {
            copy(bytes, gap());
            flush();
            writeWhole(bytes);
        }
        while (direct != null && bytes.hasRemaining()) {
            copy(bytes, Math.min(bytes.remaining(), chunk.remaining()));
            if (!chunk.hasRemaining()) {
                writeChunk();
            }
        }
        writeThroughCache(bytes);
        return count;
    }

    /** Returns what the bytes of direct writes are multiples of, or 0 if there are none. */
    int unit() {
        return direct == null ? 0 : unit;
    }

    /**
     * Returns whether bytes that are written next go to the disk from where they lie, but for less
     * than a unit at their ends.
     */
    boolean takesWithoutCopy(ByteBuffer bytes) {
        return direct != null
                && bytes.isDirect()
                && bytes.remaining() >= WriteChunk.SIZE + unit
                && bytes.alignmentOffset(bytes.position() + gap(), unit) == 0;
    }

    /** Returns how many bytes the chunk lacks to be of whole units. */
    private int gap() {
        return Math.floorMod(-chunk.position(), unit);
    }

    private void copy(ByteBuffer bytes, int count) {
        chunk.put(bytes.slice(bytes.position(), count));
        bytes.position(bytes.position() + count);
    }

    /** Writes the whole units of bytes, none of which is in the chunk. */
    private void writeWhole(ByteBuffer bytes) throws IOException {
        int limit = bytes.limit();
        bytes.limit(limit - bytes.remaining() % unit);
        try {
            while (direct != null && bytes.hasRemaining()) {
                place += direct.write(bytes, place);
            }
        } catch (IOException e) {
            endDirect(e); // fails again if it is for more than the alignment
        } finally {
            bytes.limit(limit);
        }
    }

    /**
     * Goes on elsewhere.
     *
     * @param position the first byte of a {@linkplain BlockChecksums#BLOCK block}; what was written
     *     so far has whole blocks
     */
    void moveTo(long position) throws IOException {
        flush();
        place = position;
    }

    private void flush() throws IOException {
        if (direct != null && chunk.position() > 0) {
            writeChunk();
        }
    }

    private void writeChunk() throws IOException {
        chunk.flip();
        try {
            while (chunk.hasRemaining()) {
                place += direct.write(chunk, place);
            }
            chunk.clear();
        } catch (IOException e) {
            chunk.compact(); // what is left of it
            endDirect(e); // fails again if it is for more than the alignment
        }
    }

    /** Lets the rest of the file go through the page cache. */
    private void endDirect(Exception why) throws IOException {
        if (why != null) {
            logger.debug("No direct writes, but through the page cache", why);
        }
        closeDirect();
        chunk.flip();
        writeThroughCache(chunk);
        spare.giveBack(chunk);
        chunk = null;
    }

    private void writeThroughCache(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            place += file.write(bytes, place);
        }
    }

    /** Writes what is left, which may be less than direct writes can be of. */
    void finish() throws IOException {
        if (direct != null) {
            endDirect(null);
        }
    }

    /** Brings all to the disk. */
    void sync() throws IOException {
        file.force(true);
    }

    private void closeDirect() throws IOException {
        if (direct != null) {
            FileChannel closed = direct;
            direct = null;
            closed.close();
        }
    }

    /** {@inheritDoc} */
    @Override
    public boolean isOpen() {
        return file.isOpen();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        try {
            closeDirect();
        } finally {
            file.close();
            if (chunk != null) {
                spare.giveBack(chunk);
                chunk = null;
            }
        }
    }
}
