package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.safetensors.SafetensorsWriter;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

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

    private static final int PIECE_BITS = 30; // buffers have 1 GiB, see TensorBuffers

    private final List<PartFile> files;
    private ByteBuffer chunk = ByteBuffer.allocate(0); // grows to what is wanted at a time
    private PartFile file; // of the chunk
    private long begin; // of the chunk in the file
    private ByteBuffer streamed; // made when a box is streamed first

    TensorReader(List<PartFile> files) {
        this.files = files;
    }

    /** Returns the lengths of a box. */
    static long[] lengths(List<List<ShardRange>> box) {
        return box.stream()
                .mapToLong(ranges -> ranges.stream().mapToLong(ShardRange::length).sum())
                .toArray();
    }

    /**
     * Reads a box of a tensor.
     *
     * @param tensor the tensor
     * @param box the ranges of each axis, in the order in which they are wanted
     * @param memory where the elements go: buffers of 1 GiB, the last one shorter
     */
    void read(CutTensor tensor, List<List<ShardRange>> box, ByteBuffer[] memory)
            throws IOException {
        int parts = tensor.isWhole() ? 1 : tensor.cut().getRanks();
        for (int part = 0; part < parts; part++) {
            new BoxCopy(tensor, part, box, memory).run();
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
        long first = position / BlockChecksums.BLOCK;
        long last = (position + wanted - 1) / BlockChecksums.BLOCK;
        int bytes = (int) Math.min(BLOCKS, last - first + 1) * BlockChecksums.BLOCK;
        file = null;
        if (chunk.capacity() < bytes) {
            chunk = ByteBuffer.allocateDirect(bytes);
        }
        from.read(first, chunk.clear().limit(bytes));
        begin = first * BlockChecksums.BLOCK;
        file = from;
    }

    /**
     * Writes a box of a tensor to another file in row-major order, a chunk at a time.
     *
     * @param tensor the tensor
     * @param box the ranges of each axis
     * @param out where the elements go
     */
    void stream(CutTensor tensor, List<List<ShardRange>> box, SafetensorsWriter out)
            throws IOException {
        if (streamed == null) {
            streamed = ByteBuffer.allocateDirect(PartWriter.CHUNK);
        }
        stream(tensor, box, 0, out);
    }

    /** Writes a box that has one index of each axis before the given one. */
    private void stream(
            CutTensor tensor, List<List<ShardRange>> box, int axis, SafetensorsWriter out)
            throws IOException {
        long[] lengths = lengths(box);
        long bytes = tensor.type().getNumOfBytes() * new Shape(lengths).size();
        if (bytes <= streamed.capacity()) {
            streamed.clear().limit((int) bytes);
            read(tensor, box, new ByteBuffer[] {streamed});
            out.write(streamed);
            return;
        }
        long step = Math.max(1, streamed.capacity() / (bytes / lengths[axis]));
        for (long at = 0; at < lengths[axis]; at += step) {
            List<List<ShardRange>> piece = new ArrayList<>(box);
            piece.set(axis, part(box.get(axis), at, Math.min(lengths[axis], at + step)));
            stream(tensor, piece, axis + 1, out);
        }
    }

    /** Returns the indices {@code from} to {@code to} of ranges that lie one after another. */
    private static List<ShardRange> part(List<ShardRange> ranges, long from, long to) {
        List<ShardRange> part = new ArrayList<>();
        long place = 0;
        for (ShardRange range : ranges) {
            long begin = Math.max(from, place);
            long end = Math.min(to, place + range.length());
            if (begin < end) {
                part.add(new ShardRange(range.start() + begin - place, end - begin));
            }
            place += range.length();
        }
        return part;
    }

    /**
     * Copies what one part has of a box, by runs of neighbouring elements: the box is the product
     * of pieces of each axis. From the last axis that is not copied whole, the axes behind it are
     * one run.
     */
    private final class BoxCopy {

        private final PartFile from;
        private final long place; // of the tensor in the file
        private final int width; // bytes of an element
        private final ByteBuffer[] memory;
        private final List<List<AxisPiece>> pieces = new ArrayList<>(); // by axis
        private final long[] sourceStrides; // elements
        private final long[] targetStrides;
        private final int last; // the axis whose pieces are runs

        BoxCopy(CutTensor tensor, int part, List<List<ShardRange>> box, ByteBuffer[] memory) {
            from = files.get(part);
            place = from.place(tensor.name());
            width = tensor.type().getNumOfBytes();
            this.memory = memory;
            for (int axis = 0; axis < box.size(); axis++) {
                pieces.add(
                        axis == tensor.axis()
                                ? AxisPiece.ofPart(tensor.cut(), part, box.get(axis))
                                : AxisPiece.ofWhole(box.get(axis)));
            }
            long[] source = tensor.getShardShape(part).getShape();
            long[] target = lengths(box);
            sourceStrides = strides(source);
            targetStrides = strides(target);
            int axis = source.length - 1;
            while (axis > 0
                    && source[axis] == target[axis]
                    && pieces.get(axis).equals(List.of(new AxisPiece(0, 0, source[axis])))) {
                axis--;
            }
            last = axis;
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
            } else if (pieces.stream().noneMatch(List::isEmpty)) {
                visit(0, 0, 0);
            }
        }

        private void visit(int axis, long source, long target) throws IOException {
            long sourceStride = sourceStrides[axis];
            long targetStride = targetStrides[axis];
            for (AxisPiece piece : pieces.get(axis)) {
                if (axis == last) {
                    copyRun(
                            source + piece.source() * sourceStride,
                            target + piece.target() * targetStride,
                            piece.length() * sourceStride);
                    continue;
                }
                for (long i = 0; i < piece.length(); i++) {
                    visit(
                            axis + 1,
                            source + (piece.source() + i) * sourceStride,
                            target + (piece.target() + i) * targetStride);
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
    private record AxisPiece(long source, long target, long length) {

        /** Returns the pieces of an axis that the source has whole, in the order of the source. */
        static List<AxisPiece> ofWhole(List<ShardRange> wanted) {
            return merge(ofWhole(wanted, new ShardRange(0, Long.MAX_VALUE), 0));
        }

        /**
         * Returns the pieces of an axis that are to be had from a part, in the order of the part.
         * Of replicas the first part gives.
         */
        static List<AxisPiece> ofPart(Cut cut, int part, List<ShardRange> wanted) {
            List<AxisPiece> pieces = new ArrayList<>();
            for (Segment segment : cut.getSegments()) {
                if (segment.range().length() > 0 && segment.getFirstRank() == part) {
                    pieces.addAll(ofWhole(wanted, segment.range(), segment.getPlace(part)));
                }
            }
            return merge(pieces);
        }

        /** Returns what is wanted of a range of the whole that lies at a place of the source. */
        private static List<AxisPiece> ofWhole(
                List<ShardRange> wanted, ShardRange range, long place) {
            List<AxisPiece> pieces = new ArrayList<>();
            long target = 0;
            for (ShardRange each : wanted) {
                long begin = Math.max(each.start(), range.start());
                long end = Math.min(each.end(), range.end());
                if (begin < end) {
                    pieces.add(
                            new AxisPiece(
                                    place + begin - range.start(),
                                    target + begin - each.start(),
                                    end - begin));
                }
                target += each.length();
            }
            return pieces;
        }

        private static List<AxisPiece> merge(List<AxisPiece> pieces) {
            pieces.sort(Comparator.comparingLong(AxisPiece::source));
            List<AxisPiece> merged = new ArrayList<>();
            for (AxisPiece next : pieces) {
                AxisPiece last = merged.isEmpty() ? null : merged.get(merged.size() - 1);
                if (last != null
                        && last.source + last.length == next.source
                        && last.target + last.length == next.target) {
                    merged.set(
                            merged.size() - 1,
                            new AxisPiece(last.source, last.target, last.length + next.length));
                } else {
                    merged.add(next);
                }
            }
            return merged;
        }
    }
}
