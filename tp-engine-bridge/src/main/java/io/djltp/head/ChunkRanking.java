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
        Tensor found = torch.zeros(new long[] {chunks.rows}, chunks.memory.options());
        for (int i = 0; i < chunks.plan().count(); i++) {
            if (chunks.hasLabels(i, labels)) {
                try (PointerScope scope = new PointerScope()) {
                    chunks.addLabelLogits(i, labels, chunks.logits(i), found);
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
                    Tensor exact =
                            countBefore(
                                    logits.index_select(0, rows),
                                    values.index_select(0, rows),
                                    local.index_select(0, rows));
                    counts.index_copy_(0, rows, exact);
                }
                before.add_(counts);
            }
        }
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
}
