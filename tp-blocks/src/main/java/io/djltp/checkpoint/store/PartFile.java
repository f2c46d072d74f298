package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.Shape;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** An open file of a part: blocks are read that are as they were written, or none. */
final class PartFile implements Closeable {

    private final Path path;
    private final FileChannel channel;
    private final BlockChecksums sums;
    private final AtomicLong bytesRead;
    private final Map<String, Long> places = new HashMap<>(); // of tensors, by name

    private PartFile(Path path, FileChannel channel, BlockChecksums sums, AtomicLong bytesRead) {
        this.path = path;
        this.channel = channel;
        this.sums = sums;
        this.bytesRead = bytesRead;
    }

    /**
     * Opens the file of a part, and checks that it is as long as it was, and has what the index
     * says.
     *
     * @param folder the folder of the checkpoint
     * @param index its index
     * @param part the part
     * @param bytesRead counts what is read
     * @throws CheckpointException if it is missing or damaged, or has something else
     */
    static PartFile open(Path folder, CheckpointIndex index, int part, AtomicLong bytesRead)
            throws IOException {
        CheckpointIndex.Part written = index.files().get(part);
        Path path = folder.resolve(written.file());
        FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
        PartFile file = new PartFile(path, channel, written.checksums(), bytesRead);
        try {
            file.checkSize();
            file.readHeader(part, index);
            return file;
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    private void checkSize() throws IOException {
        long size = channel.size();
        if (size != sums.size()) {
            throw damaged(
                    damage(
                            Math.min(size, sums.size()),
                            Math.max(size, sums.size()),
                            size < sums.size() ? "missing" : "not written by this library"));
        }
    }

    private void readHeader(int part, CheckpointIndex index) throws IOException {
        checkBlocks(0, 1); // the length of the header, and most often all of it
        try (SafetensorsFile tensors = SafetensorsFile.open(path)) {
            long data = tensors.getDataStart();
            checkBlocks(1, (data + BlockChecksums.BLOCK - 1) / BlockChecksums.BLOCK);
            for (CutTensor tensor : index.tensors().values()) {
                if (tensor.isIn(part)) {
                    StoredTensor stored = tensors.getTensor(tensor.name());
                    checkShard(tensor, part, stored);
                    places.put(tensor.name(), data + stored.begin());
                }
            }
            String ranges = tensors.getMetadata().get(CheckpointIndex.RANGES);
            if (ranges != null
                    && !ranges.equals(
                            CheckpointIndex.checksumOfRanges(index.tensors().values(), part))) {
                throw new CheckpointException(
                        path
                                + " has other ranges of the tensors than the index says: the index"
                                + " has been changed, or is of another checkpoint. Use another"
                                + " checkpoint");
            }
        }
    }

    private void checkBlocks(long first, long end) throws IOException {
        ByteBuffer block = ByteBuffer.allocate(BlockChecksums.BLOCK);
        for (long i = first; i < Math.min(end, sums.blocks()); i++) {
            read(i, block.clear());
        }
    }

    private void checkShard(CutTensor tensor, int part, StoredTensor stored)
            throws CheckpointException {
        Shape shape = tensor.getShardShape(part);
        if (!stored.shape().equals(shape) || !stored.type().equals(tensor.type().asSafetensors())) {
            throw new CheckpointException(
                    String.format(
                            "%s has tensor %s as %s %s, and the index as %s %s: its process"
                                    + " declared another one",
                            path,
                            tensor.name(),
                            stored.type(),
                            stored.shape(),
                            tensor.type().asSafetensors(),
                            shape));
        }
    }

    /** Returns the first byte of a tensor in the file. */
    long place(String tensor) {
        return places.get(tensor);
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
        List<String> damages = check(first, target);
        if (!damages.isEmpty()) {
            throw damaged(damages.get(0));
        }
    }

    /** Checks all blocks. */
    List<String> check() throws IOException {
        List<String> damages = new ArrayList<>();
        int blocks = Math.min(TensorReader.BLOCKS, sums.blocks());
        ByteBuffer chunk = ByteBuffer.allocateDirect(blocks * BlockChecksums.BLOCK);
        for (long block = 0; block < sums.blocks(); block += blocks) {
            damages.addAll(check(block, chunk.clear()));
        }
        return damages;
    }

    private List<String> check(long first, ByteBuffer target) throws IOException {
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
        List<String> damages = new ArrayList<>();
        for (long block = first; sums.begin(block) < at; block++) {
            int from = begin + (int) (sums.begin(block) - start);
            int length = (int) (sums.end(block) - sums.begin(block));
            if (!sums.matches(block, target.slice(from, length))) {
                damages.add(
                        damage(
                                sums.begin(block),
                                sums.end(block),
                                "not as they were written (CRC-32C)"));
            }
        }
        return damages;
    }

    private String damage(long begin, long end, String what) {
        return path.getFileName() + ", bytes " + begin + " to " + end + ": " + what;
    }

    private CheckpointException damaged(String damage) {
        return new CheckpointException(
                path.getParent() + " is damaged: " + damage + ". Use another checkpoint");
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        channel.close();
    }
}
