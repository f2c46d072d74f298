package io.djltp.bridge;

import ai.djl.ndarray.NDArray;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

/** Operations on the rows of large arrays that DJL does not have, or has at many times the cost. */
@SuppressWarnings("try") // a scope is used by being open
public final class RowOps {

    private RowOps() {}

    /**
     * Returns the largest element of each row. DJL's {@code max(axes)} also looks for its place,
     * which takes several times as long.
     *
     * @param rows the rows, [rows, columns], of one column or more
     * @return the largest elements, [rows], attached to the manager of {@code rows}
     */
    public static NDArray max(NDArray rows) {
        try (PointerScope scope = new PointerScope()) {
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
        try (PointerScope scope = new PointerScope()) {
            TensorView.of(target)
                    .tensor()
                    .detach()
                    .scatter_add_(
                            1,
                            TensorView.of(column).tensor().unsqueeze(1),
                            TensorView.of(value).tensor().unsqueeze(1));
        }
    }
}
