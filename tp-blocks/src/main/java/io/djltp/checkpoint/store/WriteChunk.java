package io.djltp.checkpoint.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The chunk of memory that direct writes go through, which lies as the file system wants it. It is
 * kept from one save to the next, and made with the first that needs it.
 */
final class WriteChunk {

    /** The bytes of a chunk: so many that the disk has enough to do at a time. */
    static final int SIZE = 4 << 20;

    private final AtomicReference<ByteBuffer> spare = new AtomicReference<>();

    /**
     * Returns an empty chunk for a file.
     *
     * @param file a file, of the same file system each time
     * @return the chunk, or {@code null} if the file system says nothing of its blocks
     */
    ByteBuffer take(Path file) {
        ByteBuffer chunk = spare.getAndSet(null);
        if (chunk != null) {
            return chunk;
        }
        long block = block(file);
        if (block < 1 || SIZE % block != 0) {
            return null;
        }
        return ByteBuffer.allocateDirect(SIZE + (int) block)
                .alignedSlice((int) block)
                .slice(0, SIZE);
    }

    /** Returns the bytes that direct writes are of, or 0 where there are none. */
    private static long block(Path file) {
        if (DurableFiles.WINDOWS) {
            return 0; // not tried
        }
        try {
            return Files.getFileStore(file).getBlockSize();
        } catch (IOException | UnsupportedOperationException e) {
            return 0;
        }
    }

    /** Takes a chunk back. */
    void giveBack(ByteBuffer chunk) {
        spare.set(chunk.clear());
    }
}
