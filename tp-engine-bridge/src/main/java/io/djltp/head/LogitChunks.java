package io.djltp.head;

import org.bytedeco.pytorch.Tensor;

/** The logits of a batch, of which those of one chunk of a rank's classes exist at a time. */
abstract class LogitChunks {

    final ChunkMemory buffers;
    final long rows;

    /**
     * Prepares a pass over the chunks.
     *
     * @param buffers the memory
     * @param rows the rows of the batch
     */
    LogitChunks(ChunkMemory buffers, long rows) {
        this.buffers = buffers;
        this.rows = rows;
        buffers.setRows(rows);
    }

    ChunkPlan plan() {
        return buffers.plan();
    }

    /**
     * Returns the logits of a chunk, [rows, classes of the chunk], contiguous and in float32. The
     * caller may change them; they last until the next call.
     */
    final Tensor logits(int index) {
        return fill(index, buffers.rowMajorLogits(index));
    }

    /** Puts the logits of a chunk into their place. */
    abstract Tensor fill(int index, Tensor place);

    /** Logits that a linear layer computes when they are asked for. */
    static final class OfLinear extends LogitChunks {

        private final ChunkedLinear linear;
        private final Tensor features; // [rows, features], contiguous, float32

        OfLinear(ChunkMemory buffers, ChunkedLinear linear, Tensor features) {
            super(buffers, features.size(0));
            this.linear = linear;
            this.features = features;
        }

        @Override
        Tensor fill(int index, Tensor place) {
            return linear.output(index, place, features, rows, linear.weight(index));
        }
    }

    /** Logits that are there. */
    static final class OfLogits extends LogitChunks {

        private final Tensor all; // [rows, classes], of any floating type

        OfLogits(ChunkMemory buffers, Tensor all) {
            super(buffers, all.size(0));
            this.all = all;
        }

        @Override
        Tensor fill(int index, Tensor place) {
            return place.copy_(all.narrow(1, plan().start(index), plan().length(index)));
        }
    }
}
