package io.djltp.head;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;

/** The logits of a batch, of which those of one chunk of a rank's classes exist at a time. */
final class LogitChunks {

    final ChunkMemory memory;
    final long rows;
    private final Filling filling;

    /** Puts the logits of a chunk into their place. */
    @FunctionalInterface
    private interface Filling {

        void fill(int index, Tensor place);
    }

    private LogitChunks(ChunkMemory memory, long rows, Filling filling) {
        this.memory = memory;
        this.rows = rows;
        this.filling = filling;
        memory.setRows(rows);
    }

    /**
     * Returns logits that a linear layer computes when they are asked for.
     *
     * @param memory the memory
     * @param linear the layer
     * @param x the features, [rows, features], contiguous, float32
     */
    static LogitChunks of(ChunkMemory memory, ChunkedLinear linear, Tensor x) {
        return new LogitChunks(
                memory,
                x.size(0),
                (index, place) -> linear.rowMajor(index, place, x, linear.weight(index)));
    }

    /**
     * Returns logits that are there.
     *
     * @param memory the memory
     * @param all the logits, [rows, classes], of any floating type
     */
    static LogitChunks of(ChunkMemory memory, Tensor all) {
        ChunkPlan plan = memory.plan();
        return new LogitChunks(
                memory,
                all.size(0),
                (index, place) ->
                        place.copy_(all.narrow(1, plan.start(index), plan.length(index))));
    }

    ChunkPlan plan() {
        return memory.plan();
    }

    /**
     * Returns the logits of a chunk, [rows, classes of the chunk], contiguous and in float32. The
     * caller may change them; they last until the next call.
     */
    Tensor logits(int index) {
        Tensor place = memory.rowMajorLogits(index);
        filling.fill(index, place);
        return place;
    }

    /** Returns whether the label of a row lies in a chunk. */
    boolean hasLabels(int index, ShardLabels labels) {
        long start = plan().start(index);
        return labels.from(start) < labels.from(start + plan().length(index));
    }

    /** Adds to each row the logit of its label, if it lies in a chunk. */
    void addLabelLogits(int index, ShardLabels labels, Tensor logits, Tensor target) {
        long start = plan().start(index);
        long length = plan().length(index);
        int from = labels.from(start);
        int to = labels.from(start + length);
        if (from < to) {
            Tensor places = memory.index(labels.places(from, to, start, 1, length));
            Tensor rowsOfLabels = memory.index(Arrays.copyOfRange(labels.rows, from, to));
            Tensor found = logits.view(-1).index_select(0, places);
            target.index_add_(0, rowsOfLabels, found.to(target.scalar_type()));
        }
    }

    /** The sum of the exponentials of the chunks, for each row. */
    static final class LogSum {

        private final Tensor largest; // [rows], float32: what the exponentials are above
        private final Tensor sum; // [rows], float64

        LogSum(LogitChunks chunks) {
            long[] shape = {chunks.rows};
            largest = torch.full(shape, new Scalar(-Float.MAX_VALUE), chunks.memory.options());
            sum = torch.zeros(shape, chunks.memory.wide());
        }

        /**
         * Adds a chunk.
         *
         * @param logits the logits, which are used up, [rows, classes of the chunk]
         * @param top the largest of each row, [rows]
         */
        void add(Tensor logits, Tensor top) {
            Tensor now = torch.maximum(largest, top);
            logits.sub_(now.unsqueeze(1)).exp_();
            sum.mul_(largest.sub(now).exp_());
            sum.add_(logits.sum(new long[] {1}, false, new ScalarTypeOptional()));
            largest.copy_(now);
        }

        /** Returns the largest logit of each row, float32 [rows]. */
        Tensor largest() {
            return largest;
        }

        /**
         * Returns the sum of the exponentials above a logit that is not smaller, float64 [rows].
         */
        Tensor sumAbove(Tensor larger) {
            return largest.to(ScalarType.Double).sub_(larger).exp_().mul_(sum);
        }
    }
}
