package io.djltp.checkpoint.store;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/** A file of which blocks are read that are as they were written, or none. */
final class CheckedFile implements Closeable {

    private final Path path;
    private final FileChannel channel;
    private final BlockChecksums sums;
    private final AtomicLong bytesRead;

    private CheckedFile(Path path, FileChannel channel, BlockChecksums sums, AtomicLong bytesRead) {
        this.path = path;
        this.channel = channel;
        this.sums = sums;
        this.bytesRead = bytesRead;
    }

    /**
     * Opens a file.
     *
     * @param bytesRead counts what is read
     * @throws CheckpointException if it is not there, or longer or shorter than it was
     */
    static CheckedFile open(Path path, BlockChecksums sums, AtomicLong bytesRead)
            throws IOException {
        if (!Files.exists(path)) {
            throw new CheckpointException(
                    path + " is missing: copy it back, or use another checkpoint");
        }
        FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
        CheckedFile file = new CheckedFile(path, channel, sums, bytesRead);
        long size = channel.size();
        if (size != sums.size()) {
            channel.close();
            long begin = Math.min(size, sums.size());
            long end = Math.max(size, sums.size());
            throw file.damaged(
                    new Damage(
                            path.getFileName().toString(),
                            begin,
                            end,
                            size < sums.size() ? "missing" : "not written by this library"));
        }
        return file;
    }

    /**
     * Reads whole blocks.
     *
     * @param first the first block
     * @param target where the bytes go, from its position on; as many blocks as it has place for,
     *     to the end of the file at most
     * @throws CheckpointException if one is damaged
     */
    void read(long first, ByteBuffer target) throws IOException {
        List<Damage> damages = check(first, target);
        if (!damages.isEmpty()) {
            throw damaged(damages.get(0));
        }
    }

    /** Checks all blocks. */
    List<Damage> check() throws IOException {
        List<Damage> damages = new ArrayList<>();
        int blocks = Math.min(BlockCursor.BLOCKS, sums.blocks());
        ByteBuffer chunk = ByteBuffer.allocateDirect(blocks * BlockChecksums.BLOCK);
        for (long block = 0; block < sums.blocks(); block += blocks) {
            damages.addAll(check(block, chunk.clear()));
        }
        return damages;
    }

    private List<Damage> check(long first, ByteBuffer target) throws IOException {
        int begin = target.position();
        long start = sums.begin(first);
        target.limit((int) (begin + Math.min(target.remaining(), sums.size() - start)));
        bytesRead.addAndGet(target.remaining());
        long at = start;
        while (target.hasRemaining()) {
            int count = channel.read(target, at);
            if (count < 0) {
                throw new EOFException(path + " ends at byte " + at + " now");
            }
            at += count;
        }
        List<Damage> damages = new ArrayList<>();
        for (long block = first; sums.begin(block) < at; block++) {
            int from = begin + (int) (sums.begin(block) - start);
            int length = (int) (sums.end(block) - sums.begin(block));
            if (!sums.matches(block, target.slice(from, length))) {
                damages.add(
                        new Damage(
                                path.getFileName().toString(),
                                sums.begin(block),
                                sums.end(block),
                                "not as they were written (CRC-32C)"));
            }
        }
        return damages;
    }

    private CheckpointException damaged(Damage damage) {
        return new CheckpointException(
                path.getParent() + " is damaged: " + damage + ". Use another checkpoint");
    }

    Path path() {
        return path;
    }

    BlockChecksums checksums() {
        return sums;
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        channel.close();
    }
}
