package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * Writes to a channel and adds up the checksums of what was written, a block at a time, so that the
 * bytes are still in the processor's cache when they are copied.
 */
final class ChecksummedChannel implements WritableByteChannel {

    private final WritableByteChannel out;
    private final BlockChecksums.Builder sums = new BlockChecksums.Builder();

    ChecksummedChannel(WritableByteChannel out) {
        this.out = out;
    }

    /** {@inheritDoc} */
    @Override
    public int write(ByteBuffer bytes) throws IOException {
        int limit = bytes.limit();
        int begin = bytes.position();
        try {
            while (bytes.position() < limit) {
                int end = Math.min(limit, bytes.position() + BlockChecksums.BLOCK);
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
