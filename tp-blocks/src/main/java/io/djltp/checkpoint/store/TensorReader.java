package io.djltp.checkpoint.store;

import io.djltp.cut.ShardRange;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Puts together what is wanted of a tensor from the parts that have it. Every byte is checked in a
 * chunk before it is copied: memory that is filled never gets what is damaged, and the copy, out of
 * the processor's cache, costs less than a read into memory that was never touched before.
 */
final class TensorReader {

    private static final int PIECE_BITS = 30; // buffers have 1 GiB, see TensorBuffers

    private final PartFiles files;
    private final BlockCursor cursor = new BlockCursor();

    TensorReader(PartFiles files) {
        this.files = files;
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
        long[] target = lengths(box);
        int parts = tensor.isWhole() ? 1 : tensor.cut().getRanks();
        int width = tensor.type().getNumOfBytes();
        for (int part = 0; part < parts; part++) {
            CheckedFile file = files.file(part);
            long place = files.place(part, tensor.name());
            new BoxCopy(pieces(tensor, part, box), tensor.getShardShape(part).getShape(), target)
                    .forEach(
                            (from, to, length) ->
                                    copy(
                                            file,
                                            place + from * width,
                                            memory,
                                            to * width,
                                            length * width));
        }
    }

    /** Returns the lengths of a box. */
    static long[] lengths(List<List<ShardRange>> box) {
        return box.stream()
                .mapToLong(ranges -> ranges.stream().mapToLong(ShardRange::length).sum())
                .toArray();
    }

    private static List<List<AxisPiece>> pieces(
            CutTensor tensor, int part, List<List<ShardRange>> box) {
        List<List<AxisPiece>> pieces = new ArrayList<>();
        for (int axis = 0; axis < box.size(); axis++) {
            pieces.add(
                    axis == tensor.axis()
                            ? AxisPiece.ofPart(tensor.cut(), part, box.get(axis))
                            : AxisPiece.ofWhole(box.get(axis)));
        }
        return pieces;
    }

    private void copy(CheckedFile file, long position, ByteBuffer[] memory, long start, long bytes)
            throws IOException {
        long done = 0;
        while (done < bytes) {
            long from = position + done;
            long at = start + done;
            ByteBuffer target = memory[(int) (at >> PIECE_BITS)];
            int index = (int) (at & (1 << PIECE_BITS) - 1);
            int most = (int) Math.min(bytes - done, target.limit() - index);
            ByteBuffer source = cursor.read(file, from, most);
            int count = Math.min(most, source.remaining());
            target.put(index, source, source.position(), count);
            done += count;
        }
    }
}
