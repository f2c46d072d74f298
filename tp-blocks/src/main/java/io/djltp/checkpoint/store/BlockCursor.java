package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * Bytes of checked files, through one chunk of memory that keeps the blocks that were read last:
 * who reads a file from its beginning to its end reads no block twice.
 */
final class BlockCursor {

    /** The blocks of a chunk: so few that they stay in the processor's cache. */
    static final int BLOCKS = 4;

    private ByteBuffer chunk = ByteBuffer.allocate(0); // grows to what is wanted at a time
    private CheckedFile file;
    private long begin; // of the chunk in the file

    /**
     * Returns bytes of a file that are as they were written.
     *
     * @param from the file
     * @param position the first byte
     * @param wanted how many
     * @return the chunk, at the first byte; some of those that are wanted, one at least
     * @throws CheckpointException if a block that holds them is damaged
     */
    ByteBuffer read(CheckedFile from, long position, long wanted) throws IOException {
        if (from != file || position < begin || position >= begin + chunk.limit()) {
            long first = position / BlockChecksums.BLOCK;
            long last = (position + wanted - 1) / BlockChecksums.BLOCK;
            int blocks = (int) Math.min(BLOCKS, last - first + 1);
            file = null;
            if (chunk.capacity() < blocks * BlockChecksums.BLOCK) {
                chunk = ByteBuffer.allocateDirect(blocks * BlockChecksums.BLOCK);
            }
            from.read(first, chunk.clear().limit(blocks * BlockChecksums.BLOCK));
            begin = first * BlockChecksums.BLOCK;
            file = from;
        }
        return chunk.position((int) (position - begin));
    }
}
