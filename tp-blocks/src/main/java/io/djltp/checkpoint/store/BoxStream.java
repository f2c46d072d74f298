package io.djltp.checkpoint.store;

import io.djltp.cut.ShardRange;
import io.djltp.safetensors.SafetensorsWriter;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Copies boxes of tensors of one checkpoint to another, a chunk at a time. */
final class BoxStream {

    private final TensorReader reader;
    private final ByteBuffer chunk = ByteBuffer.allocateDirect((int) ArrayStream.CHUNK);

    BoxStream(TensorReader reader) {
        this.reader = reader;
    }

    /**
     * Copies a box, in row-major order.
     *
     * @param tensor the tensor
     * @param box the ranges of each axis
     * @param out where the elements go
     */
    void copy(CutTensor tensor, List<List<ShardRange>> box, SafetensorsWriter out)
            throws IOException {
        copy(tensor, box, 0, out);
    }

    /** Copies a box that has one index of each axis before the given one. */
    private void copy(CutTensor tensor, List<List<ShardRange>> box, int axis, SafetensorsWriter out)
            throws IOException {
        long[] lengths = TensorReader.lengths(box);
        long bytes = tensor.type().getNumOfBytes();
        for (long length : lengths) {
            bytes *= length;
        }
        if (bytes <= chunk.capacity()) {
            chunk.clear().limit((int) bytes);
            reader.read(tensor, box, new ByteBuffer[] {chunk});
            out.write(chunk);
            return;
        }
        long step = Math.max(1, chunk.capacity() / (bytes / lengths[axis]));
        for (long at = 0; at < lengths[axis]; at += step) {
            List<List<ShardRange>> piece = new ArrayList<>(box);
            piece.set(axis, part(box.get(axis), at, Math.min(lengths[axis], at + step)));
            copy(tensor, piece, axis + 1, out);
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
}
