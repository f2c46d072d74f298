package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * The chunk of memory that direct writes go through, which lies as the file system wants it: a half
 * of it for each of the two files that are written at a time. It is kept from one save to the next,
 * and made with the first that needs it.
 */
final class WriteChunk {

    /**
     * The bytes of a half: so many that the disk has enough to do at a time, and so few that they
     * are copied within the processor's cache, together with the block whose checksum was added up.
     */
    static final int SIZE = 512 << 10;

    private final Queue<ByteBuffer> spare = new ConcurrentLinkedQueue<>();

    /**
     * Returns an empty half for a file.
     *
     * @param file a file, of the same file system each time
     * @return the half, or {@code null} if the file system says nothing of its blocks
     */
    ByteBuffer take(Path file) {
        ByteBuffer chunk = spare.poll();
        if (chunk != null) {
            return chunk;
        }
        long block = block(file);
        if (block < 1 || BlockChecksums.BLOCK % block != 0) {
            return null;
        }
        return ByteBuffer.allocateDirect(SIZE + (int) block)
                .alignedSlice((int) block)
                .slice(0, SIZE);
    }

    /**
     * Returns the bytes that direct writes are of, or 0 where there are none.
     *
     * @param file a file, of the same file system each time
     */
    static long block(Path file) {
        if (DurableFiles.WINDOWS) {
            return 0; // not tried
        }
        try {
            return Files.getFileStore(file).getBlockSize();
        } catch (IOException | UnsupportedOperationException e) {
            return 0;
        }
    }

    /** Takes a half back. */
    void giveBack(ByteBuffer chunk) {
        spare.add(chunk.clear());
    }
}
