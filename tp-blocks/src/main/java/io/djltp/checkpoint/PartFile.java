package io.djltp.checkpoint;

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
import java.util.zip.CRC32C;

/** An open file of a part: it gives blocks that are as they were written, or none. */
final class PartFile implements Closeable {

    private static final int BLOCK = CheckpointIndex.BLOCK;

    private final Path path;
    private final FileChannel channel;
    private final CheckpointIndex.Part written;
    private final AtomicLong bytesRead;
    private final Map<String, Long> places = new HashMap<>(); // of tensors, by name

    /**
     * Opens the file of a part, and checks that it is as long as it was, and has what the index
     * says.
     *
     * @param folder the folder of the checkpoint
     * @param index its index
     * @param part the part
     * @param bytesRead counts what is read
     * @throws CheckpointException if it is damaged, or has something else
     */
    PartFile(Path folder, CheckpointIndex index, int part, AtomicLong bytesRead)
            throws IOException {
        path = folder.resolve(CheckpointIndex.fileName(part, index.parts().size()));
        written = index.parts().get(part);
        this.bytesRead = bytesRead;
        channel = FileChannel.open(path, StandardOpenOption.READ);
        try {
            checkSize();
            readHeader(part, index);
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    private void checkSize() throws IOException {
        long size = channel.size();
        if (size != written.bytes()) {
            throw damaged(
                    damage(
                            Math.min(size, written.bytes()),
                            Math.max(size, written.bytes()),
                            size < written.bytes() ? "missing" : "not written by this library"));
        }
    }

    private void readHeader(int part, CheckpointIndex index) throws IOException {
        checkBlocks(0, 1); // the length of the header, and most often all of it
        try (SafetensorsFile tensors = SafetensorsFile.open(path)) {
            long data = tensors.getDataStart();
            checkBlocks(1, (data + BLOCK - 1) / BLOCK);
            for (CutTensor tensor : index.tensors().values()) {
                if (tensor.isIn(part)) {
                    StoredTensor stored = tensors.getTensor(tensor.name());
                    checkShard(tensor, part, stored);
                    places.put(tensor.name(), data + stored.begin());
                }
            }
        }
    }

    private void checkBlocks(long first, long end) throws IOException {
        ByteBuffer block = ByteBuffer.allocate(BLOCK);
        for (long i = first; i < Math.min(end, written.crc32c().size()); i++) {
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
     * @param target where the bytes go; as many blocks as it has place for, to the end of the file
     *     at most
     * @throws CheckpointException if one is damaged
     */
    void read(long first, ByteBuffer target) throws IOException {
        List<String> damages = check(first, target);
        if (!damages.isEmpty()) {
            throw damaged(damages.get(0));
        }
    }

    /** Checks all blocks, and returns which of them are damaged. */
    List<String> check() throws IOException {
        List<String> damages = new ArrayList<>();
        ByteBuffer chunk = ByteBuffer.allocateDirect(TensorReader.BLOCKS * BLOCK);
        for (int block = 0; block < written.crc32c().size(); block += TensorReader.BLOCKS) {
            damages.addAll(check(block, chunk.clear()));
        }
        return damages;
    }

    private List<String> check(long first, ByteBuffer target) throws IOException {
        long start = first * BLOCK;
        target.limit((int) Math.min(target.limit(), written.bytes() - start));
        bytesRead.addAndGet(target.remaining());
        while (target.hasRemaining()) {
            if (channel.read(target, start + target.position()) < 0) {
                throw new EOFException(
                        "%s ends at byte %s now".formatted(path, (start + target.position())));
            }
        }
        List<String> damages = new ArrayList<>();
        for (int at = 0; at < target.limit(); at += BLOCK) {
            int length = Math.min(BLOCK, target.limit() - at);
            CRC32C sum = new CRC32C();
            sum.update(target.slice(at, length));
            if ((int) sum.getValue() != written.crc32c().get((int) first + at / BLOCK)) {
                damages.add(
                        damage(
                                start + at,
                                start + at + length,
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
                "%s is damaged: %s. Use another checkpoint".formatted(path.getParent(), damage));
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        channel.close();
    }
}
