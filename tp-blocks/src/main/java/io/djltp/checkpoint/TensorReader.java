package io.djltp.checkpoint;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;

import org.jspecify.annotations.Nullable;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32C;

/**
 * Puts together what is wanted of a tensor from the parts that have it, for one thread.
 *
 * <p>Every byte is checked in a chunk before it is copied: memory that is filled never gets what is
 * damaged, and the copy, out of the processor's cache, costs less than a read into memory that was
 * never touched before. The chunk keeps the blocks that were read last: who reads a file from its
 * beginning to its end reads no block twice.
 */
final class TensorReader {

    /** The blocks of a chunk: so few that they stay in the processor's cache. */
    static final int BLOCKS = 4;

    private static final int BLOCK = CheckpointIndex.BLOCK;
    private static final int PIECE_BITS = 30; // buffers have 1 GiB, see TensorBuffers

    private final List<PartFile> files;
    private ByteBuffer chunk = ByteBuffer.allocate(0); // grows to what is wanted at a time
    private @Nullable PartFile file; // of the chunk
    private long begin; // of the chunk in the file

    TensorReader(List<PartFile> files) {
        this.files = files;
    }

    /**
     * Returns the shape of ranges of an axis of a tensor.
     *
     * @param ranges the ranges, or {@code null} for the whole tensor
     */
    static long[] shape(CutTensor tensor, int axis, @Nullable List<ShardRange> ranges) {
        long[] shape = tensor.shape().getShape().clone();
        if (ranges != null) {
            shape[axis] = ranges.stream().mapToLong(ShardRange::length).sum();
        }
        return shape;
    }

    /**
     * Reads ranges of an axis of a tensor.
     *
     * @param tensor the tensor
     * @param axis the axis
     * @param ranges the ranges, in the order in which they are wanted, or {@code null} for the
     *     whole tensor
     * @param memory where the elements go: buffers of 1 GiB, the last one shorter
     */
    void read(CutTensor tensor, int axis, @Nullable List<ShardRange> ranges, ByteBuffer... memory)
            throws IOException {
        int parts = tensor.cut() == null ? 1 : tensor.cut().getRanks();
        for (int part = 0; part < parts; part++) {
            new PartCopy(tensor, part, axis, ranges, memory).run();
        }
    }

    /** Copies bytes of a file that are as they were written, through the chunk. */
    private void copy(PartFile from, long position, ByteBuffer[] memory, long start, long bytes)
            throws IOException {
        long done = 0;
        while (done < bytes) {
            long at = start + done;
            ByteBuffer target = memory[(int) (at >> PIECE_BITS)];
            int index = (int) (at & (1 << PIECE_BITS) - 1);
            int most = (int) Math.min(bytes - done, target.limit() - index);
            fill(from, position + done, most);
            int place = (int) (position + done - begin);
            int count = Math.min(most, chunk.limit() - place);
            target.put(index, chunk, place, count);
            done += count;
        }
    }

    /** Fills the chunk with some of the bytes that are wanted, one at least. */
    private void fill(PartFile from, long position, long wanted) throws IOException {
        if (from == file && position >= begin && position < begin + chunk.limit()) {
            return;
        }
        long first = position / BLOCK;
        long last = (position + wanted - 1) / BLOCK;
        int bytes = (int) Math.min(BLOCKS, last - first + 1) * BLOCK;
        file = null;
        if (chunk.capacity() < bytes) {
            chunk = ByteBuffer.allocateDirect(bytes);
        }
        from.read(first, chunk.clear().limit(bytes));
        begin = first * BLOCK;
        file = from;
    }

    /**
     * Copies what one part has of the ranges, by runs of neighbouring elements. From the last axis
     * that is not copied whole, the axes behind it are one run.
     */
    private final class PartCopy {

        private final PartFile from;
        private final long place; // of the tensor in the file
        private final int width; // bytes of an element
        private final ByteBuffer[] memory;
        private final List<List<Stretch>> stretches = new ArrayList<>(); // by axis
        private final long[] sourceStrides; // elements
        private final long[] targetStrides;
        private final int last; // the axis whose stretches are runs

        PartCopy(
                CutTensor tensor,
                int part,
                int axis,
                @Nullable List<ShardRange> ranges,
                ByteBuffer[] memory) {
            from = files.get(part);
            place = from.place(tensor.name());
            width = tensor.type().getNumOfBytes();
            this.memory = memory;
            Cut cut = tensor.cut();
            long[] source = tensor.getShardShape(part).getShape();
            long[] target = shape(tensor, axis, ranges);
            for (int i = 0; i < source.length; i++) {
                List<ShardRange> all = List.of(new ShardRange(0, tensor.shape().get(i)));
                List<ShardRange> wanted = ranges != null && i == axis ? ranges : all;
                stretches.add(
                        cut != null && i == tensor.axis()
                                ? Stretch.ofPart(cut, part, wanted)
                                : Stretch.of(wanted, all.get(0), 0));
            }
            sourceStrides = strides(source);
            targetStrides = strides(target);
            int behind = source.length - 1;
            while (behind > 0
                    && source[behind] == target[behind]
                    && stretches.get(behind).equals(List.of(new Stretch(0, 0, source[behind])))) {
                behind--;
            }
            last = behind;
        }

        private static long[] strides(long[] shape) {
            long[] strides = new long[shape.length];
            long stride = 1;
            for (int axis = shape.length - 1; axis >= 0; axis--) {
                strides[axis] = stride;
                stride *= shape[axis];
            }
            return strides;
        }

        void run() throws IOException {
            if (last < 0) {
                copyRun(0, 0, 1); // a scalar
            } else if (stretches.stream().noneMatch(List::isEmpty)) {
                visit(0, 0, 0);
            }
        }

        private void visit(int axis, long source, long target) throws IOException {
            long sourceStride = sourceStrides[axis];
            long targetStride = targetStrides[axis];
            for (Stretch each : stretches.get(axis)) {
                if (axis == last) {
                    copyRun(
                            source + each.source() * sourceStride,
                            target + each.target() * targetStride,
                            each.length() * sourceStride);
                    continue;
                }
                for (long i = 0; i < each.length(); i++) {
                    visit(
                            axis + 1,
                            source + (each.source() + i) * sourceStride,
                            target + (each.target() + i) * targetStride);
                }
            }
        }

        private void copyRun(long source, long target, long length) throws IOException {
            copy(from, place + source * width, memory, target * width, length * width);
        }
    }

    /**
     * A stretch of an axis that is copied from one array to another.
     *
     * @param source where it begins in the array that is read
     * @param target where it begins in the array that is filled
     * @param length the number of indices
     */
    private record Stretch(long source, long target, long length) {

        /**
         * Returns what is to be had from a part of the axis that is cut. Of replicas the first part
         * gives.
         */
        static List<Stretch> ofPart(Cut cut, int part, List<ShardRange> wanted) {
            List<Stretch> all = new ArrayList<>();
            for (Segment segment : cut.getSegments()) {
                if (segment.range().length() > 0 && segment.getFirstRank() == part) {
                    all.addAll(of(wanted, segment.range(), segment.getPlace(part)));
                }
            }
            return inOrder(all);
        }

        /** Returns what is wanted of a range of the whole that is at a place of the source. */
        static List<Stretch> of(List<ShardRange> wanted, ShardRange range, long place) {
            List<Stretch> all = new ArrayList<>();
            long target = 0;
            for (ShardRange each : wanted) {
                long begin = Math.max(each.start(), range.start());
                long end = Math.min(each.end(), range.end());
                if (begin < end) {
                    long source = place + begin - range.start();
                    all.add(new Stretch(source, target + begin - each.start(), end - begin));
                }
                target += each.length();
            }
            return inOrder(all);
        }

        /** In that of the source, so that no block is read twice. */
        private static List<Stretch> inOrder(List<Stretch> all) {
            all.sort(Comparator.comparingLong(Stretch::source));
            return all;
        }
    }

    /** An open file of a part: it gives blocks that are as they were written, or none. */
    static final class PartFile implements Closeable {

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
                                size < written.bytes()
                                        ? "missing"
                                        : "not written by this library"));
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
            if (!stored.shape().equals(shape)
                    || !stored.type().equals(tensor.type().asSafetensors())) {
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
            return Objects.requireNonNull(places.get(tensor), tensor);
        }

        /**
         * Reads whole blocks.
         *
         * @param first the first block
         * @param target where the bytes go; as many blocks as it has place for, to the end of the
         *     file at most
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
                            "%s ends at byte %s now".formatted(path, start + target.position()));
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
                    "%s is damaged: %s. Use another checkpoint"
                            .formatted(path.getParent(), damage));
        }

        /** {@inheritDoc} */
        @Override
        public void close() throws IOException {
            channel.close();
        }
    }
}
