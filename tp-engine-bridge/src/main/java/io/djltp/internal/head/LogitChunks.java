package io.djltp.internal.head;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** The logits of a batch, of which those of one chunk of a rank's classes exist at a time. */
@SuppressWarnings("try") // a scope is used by being open
final class LogitChunks {

    final ChunkMemory memory;
    final ChunkPlan plan;
    final long rows;
    private final Filling filling;

    /** Puts the logits of a chunk into their place. */
    @FunctionalInterface
    private interface Filling {

        void fill(int index, Tensor place);
    }

    /** What is done with the logits of a chunk. */
    @FunctionalInterface
    interface Use {

        /**
         * Uses the logits of a chunk.
         *
         * @param index the chunk
         * @param logits its logits, [rows, classes of the chunk], contiguous and in float32, which
         *     may be changed
         */
        void accept(int index, Tensor logits);
    }

    private LogitChunks(ChunkMemory memory, long rows, Filling filling) {
        this.memory = memory;
        this.rows = rows;
        this.filling = filling;
        plan = memory.plan();
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
                (index, place) -> {
                    torch.mm_out(place, x, linear.weight(memory, index).t());
                    if (linear.bias() != null) {
                        place.add_(memory.plan().part(linear.bias(), index));
                    }
                });
    }

    /**
     * Returns logits that are there.
     *
     * @param memory the memory
     * @param all the logits, [rows, classes], of any floating type
     */
    static LogitChunks of(ChunkMemory memory, Tensor all) {
        Tensor byClass = all.t();
        return new LogitChunks(
                memory,
                all.size(0),
                (index, place) -> place.copy_(memory.plan().part(byClass, index).t()));
    }

    /** Computes the logits of all chunks, one chunk after the other. */
    void forEach(Use use) {
        for (int i = 0; i < plan.count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                use.accept(i, logits(i));
            }
        }
    }

    private Tensor logits(int index) {
        Tensor place = memory.rowMajorLogits(index);
        filling.fill(index, place);
        return place;
    }

    /**
     * Copies the logits of a chunk's labels to their places.
     *
     * @param taken whether minus infinity is left in their place
     */
    void copyLabelLogits(
            int index, ClassLabels labels, Tensor logits, Tensor target, boolean taken) {
        long start = plan.start(index);
        long length = plan.length(index);
        int from = labels.from(start);
        int to = labels.from(start + length);
        if (from < to) {
            Tensor places = memory.index(labels.places(from, to, start, length, 1, length));
            Tensor flat = logits.view(-1);
            target.narrow(0, from, to - from).copy_(flat.index_select(0, places));
            if (taken) {
                flat.index_fill_(0, places, new Scalar(Float.NEGATIVE_INFINITY));
            }
        }
    }

    /**
     * Returns the logits of the labels of this rank, [labels]. They are computed as those that they
     * are compared with, to the last bit.
     */
    Tensor labelLogits(ClassLabels labels) {
        Tensor found = torch.zeros(new long[] {labels.rows.length}, memory.options());
        for (int i = 0; i < plan.count(); i++) {
            long start = plan.start(i);
            if (labels.from(start) < labels.from(start + plan.length(i))) {
                try (PointerScope scope = new PointerScope()) {
                    copyLabelLogits(i, labels, logits(i), found, false);
                }
            }
        }
        return found;
    }

    /**
     * Returns how many classes of this rank come before the label of each row, int64 [rows].
     *
     * <p>In a chunk before the label's class those count that are not smaller, in one after it
     * those that are larger: in both one comparison tells, with the label's logit or with the
     * number next below it. The rows whose label lies in the chunk are few.
     *
     * @param values the logits of the labels, [rows]
     * @param columns how many columns of this rank have a lower class than the label, int64 [rows]
     */
    Tensor countBefore(Tensor values, Tensor columns) {
        Tensor before = torch.zeros_like(columns);
        Scalar least = new Scalar(Float.NEGATIVE_INFINITY);
        Tensor below = values.nextafter(torch.full_like(values, least));
        Tensor bottom = values.eq(least); // there is no number below
        forEach(
                (index, logits) -> {
                    Scalar length = new Scalar(plan.length(index));
                    Tensor local = columns.sub(new Scalar(plan.start(index)));
                    Tensor after = local.ge(length);
                    Tensor limit = torch.where(after, below, values).unsqueeze(1);
                    Tensor counts = logits.le(limit).sum(1).neg_().add_(length);
                    Tensor inside = local.ge(new Scalar(0)).logical_and_(after.logical_not());
                    Tensor close = inside.logical_or_(bottom).nonzero().squeeze(1);
                    Tensor exact =
                            countBefore(
                                    logits.index_select(0, close),
                                    values.index_select(0, close),
                                    local.index_select(0, close));
                    before.add_(counts.index_copy_(0, close, exact));
                });
        return before;
    }

    /**
     * Returns how many elements of each row come before a value in descending order: those that are
     * larger, those that are equal and in a column before a given one, and those that cannot be
     * compared because one of the two is NaN.
     *
     * @param rows the rows, [rows, columns]
     * @param values the value, [rows]
     * @param columns the column, int64 [rows]; may lie outside of the rows
     * @return the counts, int64 [rows]
     */
    static Tensor countBefore(Tensor rows, Tensor values, Tensor columns) {
        Tensor value = values.unsqueeze(1);
        Tensor places = torch.arange(new Scalar(rows.size(1)), columns.options());
        Tensor before = rows.eq(value).logical_and_(places.lt(columns.unsqueeze(1)));
        return rows.le(value).logical_not_().logical_or_(before).sum(1);
    }

    /** The sum of the exponentials of the chunks, for each row. */
    static final class LogSum {

        final Tensor largest; // [rows], float32: what the exponentials are above
        final Tensor sum; // [rows], float64

        LogSum(LogitChunks chunks) {
            long[] shape = {chunks.rows};
            largest = torch.full(shape, new Scalar(-Float.MAX_VALUE), chunks.memory.options());
            sum = torch.zeros_like(largest).to(ScalarType.Double);
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
    }
}
