package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * Writes to a channel and adds up the checksums of what was written: a block at a time, so that the
 * bytes are still in the processor's cache when they are copied, or all at once where the disk
 * takes them from where they lie.
 */
final class ChecksummedChannel implements WritableByteChannel {

    private final WritableByteChannel out;
    private final PartFile file;
    private final BlockChecksums.Builder sums = new BlockChecksums.Builder();

    /**
     * Creates a channel.
     *
     * @param out what the bytes go through on their way
     * @param file where they go
     */
    ChecksummedChannel(WritableByteChannel out, PartFile file) {
        this.out = out;
        this.file = file;
    }

    /** Returns the place in the file of what is written next. */
    long position() {
        return sums.place();
    }

    /**
     * Goes on with another block.
     *
     * @param block the place of its first byte; the block that was begun has all its bytes
     */
    void moveTo(long block) throws IOException {
        if (block != position()) {
            sums.moveTo(block);
            file.moveTo(block);
        }
    }

    /** {@inheritDoc} */
    @Override
    public int write(ByteBuffer bytes) throws IOException {
        int limit = bytes.limit();
        int begin = bytes.position();
        try {
            while (bytes.position() < limit) {
                int copied = Math.min(limit, bytes.position() + BlockChecksums.BLOCK);
                int end = file.takesWithoutCopy(bytes) ? limit : copied;
                bytes.limit(end);
                sums.add(bytes.duplicate());
                while (bytes.hasRemaining()) {
                    out.write(bytes);
                }
            }
        } finally {
            bytes.limit(limit);
        }
        return limit - begin;
    }

    /** Returns the checksums of all that was written. */
    BlockChecksums checksums() {
        return sums.build();
    }

    /** {@inheritDoc} */
    @Override
    public boolean isOpen() {
        return out.isOpen();
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        out.close();
    }
}
