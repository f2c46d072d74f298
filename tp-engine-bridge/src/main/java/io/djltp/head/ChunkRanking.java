package io.djltp.head;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Where labels come in the order of logits that exist a chunk of classes at a time. */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkRanking {

    private final LogitChunks chunks;
    private final ShardLabels labels;

    ChunkRanking(LogitChunks chunks, ShardLabels labels) {
        this.chunks = chunks;
        this.labels = labels;
    }

    /**
     * Returns the logit of the label of each row that is a class of this rank, and zero for the
     * others, [rows]. It is computed as those that it is compared with, to the last bit.
     */
    Tensor labelLogits() {
        Tensor found = torch.zeros(new long[] {chunks.rows}, chunks.buffers.options());
        for (int i = 0; i < chunks.plan().count(); i++) {
            if (hasLabels(i)) {
                try (PointerScope scope = new PointerScope()) {
                    addLabelLogits(i, chunks.logits(i), found);
                }
            }
        }
        return found;
    }

    private boolean hasLabels(int index) {
        long start = chunks.plan().start(index);
        return labels.from(start) < labels.from(start + chunks.plan().length(index));
    }

    /** Adds to each row the logit of its label, if it lies in a chunk. */
    void addLabelLogits(int index, Tensor logits, Tensor target) {
        long start = chunks.plan().start(index);
        int from = labels.from(start);
        int to = labels.from(start + chunks.plan().length(index));
        if (from < to) {
            Tensor rows = part(labels.rows, from, to);
            Tensor columns = part(labels.columns, from, to).sub_(new Scalar(start)).unsqueeze(1);
            Tensor found = logits.index_select(0, rows).gather(1, columns).squeeze(1);
            target.index_add_(0, rows, found.to(target.scalar_type()));
        }
    }

    private Tensor part(long[] values, int from, int to) {
        return chunks.buffers.index(values).narrow(0, from, to - from);
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
        for (int i = 0; i < chunks.plan().count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                long length = chunks.plan().length(i);
                Tensor logits = chunks.logits(i);
                Tensor local = columns.sub(new Scalar(chunks.plan().start(i)));
                Tensor after = local.ge(new Scalar(length));
                Tensor limit = torch.where(after, below, values).unsqueeze(1);
                Tensor counts = logits.le(limit).sum(1).neg_().add_(new Scalar(length));
                Tensor inside = local.ge(new Scalar(0)).logical_and_(after.logical_not());
                Tensor rows = inside.logical_or_(bottom).nonzero().squeeze(1);
                if (rows.size(0) > 0) {
                    counts.index_copy_(0, rows, countInRows(logits, values, local, rows));
                }
                before.add_(counts);
            }
        }
        return before;
    }

    private static Tensor countInRows(Tensor logits, Tensor values, Tensor columns, Tensor rows) {
        return RowOrder.countBefore(
                logits.index_select(0, rows),
                values.index_select(0, rows),
                columns.index_select(0, rows));
    }
}
