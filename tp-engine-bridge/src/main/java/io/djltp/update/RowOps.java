package io.djltp.update;

import ai.djl.ndarray.NDArray;

import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Operations on the rows of large arrays that DJL does not have, or has at many times the cost. */
@SuppressWarnings("try") // a scope is used by being open
public final class RowOps {

    /** Elements that are compared at a time. */
    private static final long BLOCK = 1 << 20;

    private RowOps() {}

    /**
     * Returns the largest element of each row. DJL's {@code max(axes)} also looks for its place,
     * which takes several times as long.
     *
     * @param rows the rows, [rows, columns], of one column or more
     * @return the largest elements, [rows], attached to the manager of {@code rows}
     */
    public static NDArray max(NDArray rows) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor largest = TensorView.of(rows).tensor().amax(new long[] {1}, false);
            return TensorView.toArray(largest, rows.getManager());
        }
    }

    /**
     * Adds one value to one element of each row, in place and unseen by autograd.
     *
     * @param target the rows, [rows, columns]
     * @param column the column of each row's element, int64 [rows]
     * @param value what is added to it, [rows]
     */
    public static void addAt(NDArray target, NDArray column, NDArray value) {
        try (TorchScope scope = TorchScope.open()) {
            TensorView.of(target)
                    .tensor()
                    .detach()
                    .scatter_add_(
                            1,
                            TensorView.of(column).tensor().unsqueeze(1),
                            TensorView.of(value).tensor().unsqueeze(1));
        }
    }

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
     * @return the counts, int64 [rows], attached to the manager of {@code rows}
     */
    public static NDArray countBefore(NDArray rows, NDArray value, NDArray column) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor before =
                    countBefore(
                            TensorView.of(rows).tensor(),
                            TensorView.of(value).tensor(),
                            TensorView.of(column).tensor());
            return TensorView.toArray(before, rows.getManager());
        }
    }

    /**
     * Counts for each row the columns that come before one of them: those with a larger value, and
     * of equal ones those to the left.
     *
     * @param all the values, [rows, columns]
     * @param value the value of the column, [rows]
     * @param column the column, int64 [rows]
     * @return the counts, int64 [rows]
     */
    public static Tensor countBefore(Tensor all, Tensor value, Tensor column) {
        LibTorch.load(); // may be the first call of all
        long count = all.size(0);
        long columns = all.size(1);
        Tensor values = value.unsqueeze(1);
        Tensor limits = column.unsqueeze(1);
        Tensor places = torch.arange(new Scalar(columns), limits.options());
        Tensor before = torch.empty_like(column);
        long step = Math.max(1, BLOCK / Math.max(1, columns));
        for (long first = 0; first < count; first += step) {
            long size = Math.min(step, count - first);
            try (PointerScope block = new PointerScope()) {
                Tensor part = all.narrow(0, first, size);
                Tensor own = values.narrow(0, first, size);
                Tensor lower = places.lt(limits.narrow(0, first, size));
                Tensor counted = part.le(own).logical_not_();
                counted.logical_or_(part.eq(own).logical_and_(lower));
                before.narrow(0, first, size).copy_(counted.sum(1));
            }
        }
        return before;
    }
}
