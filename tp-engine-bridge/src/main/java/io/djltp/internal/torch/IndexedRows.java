package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;

/**
 * Rows that are taken from an array by their numbers, added to others by their numbers, or cut into
 * parts, as a part of the graph: one operation each, forward and backward, whatever the number of
 * parts.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class IndexedRows {

    private IndexedRows() {}

    /**
     * Takes rows.
     *
     * @param array the array, [rows, ...]
     * @param numbers which rows, [n], int64, on the device of the array
     * @return the rows, [n, ...], attached to the manager of the array; backward, the gradient of a
     *     row is the sum of those of its copies
     */
    public static NDArray take(NDArray array, NDArray numbers) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor rows = tensor(array).index_select(0, tensor(numbers));
            return TensorView.toArray(rows, array.getManager());
        }
    }

    /**
     * Adds rows, each with a factor, to rows of zeros.
     *
     * @param array the rows, [n, columns]
     * @param factors a factor for each row, [n], of any floating point type
     * @param numbers to which row each is added, [n], int64, on the device of the array
     * @param rows the number of rows of the result
     * @return the sums, [rows, columns]; a row to which nothing is added is zero
     */
    public static NDArray sum(NDArray array, NDArray factors, NDArray numbers, long rows) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor from = tensor(array);
            Tensor weights = tensor(factors).to(from.scalar_type()).unsqueeze(1);
            Tensor zeros = torch.zeros(new long[] {rows, from.size(1)}, from.options());
            Tensor sums = zeros.index_add(0, tensor(numbers), from.mul(weights));
            return TensorView.toArray(sums, array.getManager());
        }
    }

    /**
     * Returns an array in the type of another one as a part of its graph. (DJL's {@code toType}
     * leaves the graph where the type changes.)
     *
     * @param array an array of any floating point type
     * @param other the array whose type it gets
     * @param manager the manager of the result
     * @return the array in that type
     */
    public static NDArray inTypeOf(NDArray array, NDArray other, NDManager manager) {
        try (TorchScope scope = TorchScope.open()) {
            return TensorView.toArray(tensor(array).to(tensor(other).scalar_type()), manager);
        }
    }

    /**
     * Cuts axis 0 into parts.
     *
     * @param array the array, [rows, ...]
     * @param lengths the number of rows of each part
     * @return the parts, as views
     */
    public static NDList split(NDArray array, long... lengths) {
        try (TorchScope scope = TorchScope.open()) {
            return arrays(tensor(array).split_with_sizes(lengths, 0), array.getManager());
        }
    }

    /**
     * Takes axis 0 away.
     *
     * @param array the array, [n, ...]
     * @param manager the manager of the results
     * @return n views, [...]
     */
    public static NDList unstack(NDArray array, NDManager manager) {
        try (TorchScope scope = TorchScope.open()) {
            return arrays(tensor(array).unbind(0), manager);
        }
    }

    private static NDList arrays(TensorVector tensors, NDManager manager) {
        NDList list = new NDList();
        for (long i = 0; i < tensors.size(); i++) {
            list.add(TensorView.toArray(tensors.get(i), manager));
        }
        return list;
    }

    private static Tensor tensor(NDArray array) {
        return TensorView.of(array).tensor();
    }
}
