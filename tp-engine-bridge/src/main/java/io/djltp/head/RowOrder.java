package io.djltp.head;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** The order of the elements of a row: the larger first, and of equal ones that to the left. */
@SuppressWarnings("try") // a scope is used by being open
final class RowOrder {

    /** Elements that are compared at a time. */
    private static final long BLOCK = 1 << 20;

    private RowOrder() {}

    /**
     * Returns how many elements of each row come before a value in descending order: those that are
     * larger, those that are equal and in a column before a given one, and those that cannot be
     * compared because one of the two is NaN.
     *
     * <p>Works on a few rows at a time: the comparisons of all rows at once would take several
     * times the memory of the rows.
     *
     * @param rows the rows, [rows, columns]
     * @param value the value, [rows]
     * @param column the column, int64 [rows]; may lie outside of the rows
     * @return the counts, int64 [rows]
     */
    static Tensor countBefore(Tensor rows, Tensor value, Tensor column) {
        long count = rows.size(0);
        long columns = rows.size(1);
        Tensor values = value.unsqueeze(1);
        Tensor limits = column.unsqueeze(1);
        Tensor places = torch.arange(new Scalar(columns), limits.options());
        Tensor before = torch.empty_like(column);
        long step = Math.max(1, BLOCK / Math.max(1, columns));
        for (long first = 0; first < count; first += step) {
            long size = Math.min(step, count - first);
            try (PointerScope block = new PointerScope()) {
                Tensor part = rows.narrow(0, first, size);
                Tensor limit = values.narrow(0, first, size);
                Tensor lower = places.lt(limits.narrow(0, first, size));
                Tensor counted = part.le(limit).logical_not_();
                counted.logical_or_(part.eq(limit).logical_and_(lower));
                before.narrow(0, first, size).copy_(counted.sum(1));
            }
        }
        return before;
    }
}
