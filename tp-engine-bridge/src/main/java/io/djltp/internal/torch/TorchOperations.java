package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

/**
 * Operations of libtorch that DJL does not offer, as a part of the graph: one operation each,
 * forward and backward, whatever the number of rows or parts.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class TorchOperations {

    private TorchOperations() {}

    /**
     * Computes softmax(q k^T / sqrt(d) + bias) v, without ever writing the scores of all pairs of
     * positions to memory, neither forward nor backward (FlashAttention: Dao et al., 2022, <a
     * href="https://arxiv.org/abs/2205.14135">arXiv:2205.14135</a>).
     *
     * <p>If the bias is very low for all keys of a query, such as -1e9, the kernel's sum of
     * exponentials is rounded, and its gradients are not those of the softmax. The caller must then
     * set the result of that query to 0, and its gradient with it.
     *
     * @param query the queries q, [B, H, T, d]
     * @param key the keys k, [B, H, S, d]
     * @param value the values v, [B, H, S, d]
     * @param bias what is added to the scores, [1 or B, 1 or H, 1 or T, S], or {@code null}
     * @param causal whether position t sees the keys 0 to t only; without a bias
     * @return the weighted values, [B, H, T, d], attached to the manager of the queries
     */
    public static NDArray attention(
            NDArray query, NDArray key, NDArray value, @Nullable NDArray bias, boolean causal) {
        return TorchScope.array(
                query.getManager(),
                () ->
                        torch.scaled_dot_product_attention(
                                tensor(query),
                                tensor(key),
                                tensor(value),
                                bias == null
                                        ? new TensorOptional()
                                        : new TensorOptional(tensor(bias)),
                                0,
                                causal,
                                new DoubleOptional(),
                                false));
    }

    /**
     * Normalizes rows by their root mean square: w x / sqrt(mean(x^2) + eps), the mean over the
     * last axis. Numbers of 16 bits are squared and summed in float32.
     *
     * @param input the rows x, [x1, ..., xn, D]
     * @param weight the weight w, [D]
     * @param epsilon what keeps the root of a row of zeros from 0
     * @return the normalized rows, attached to the manager of the input
     */
    public static NDArray normalize(NDArray input, NDArray weight, double epsilon) {
        return TorchScope.array(
                input.getManager(),
                () ->
                        torch.rms_norm(
                                tensor(input),
                                weight.getShape().getShape(),
                                new TensorOptional(tensor(weight)),
                                new DoubleOptional(epsilon)));
    }

    /**
     * Takes rows.
     *
     * @param array the array, [rows, ...]
     * @param numbers which rows, [n], int64, on the device of the array
     * @return the rows, [n, ...], attached to the manager of the array; backward, the gradient of a
     *     row is the sum of those of its copies
     */
    public static NDArray takeRows(NDArray array, NDArray numbers) {
        return TorchScope.array(
                array.getManager(), () -> tensor(array).index_select(0, tensor(numbers)));
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
    public static NDArray sumRows(NDArray array, NDArray factors, NDArray numbers, long rows) {
        return TorchScope.array(
                array.getManager(),
                () -> {
                    Tensor from = tensor(array);
                    Tensor weights = tensor(factors).to(from.scalar_type()).unsqueeze(1);
                    Tensor zeros = torch.zeros(new long[] {rows, from.size(1)}, from.options());
                    return zeros.index_add(0, tensor(numbers), from.mul(weights));
                });
    }

    /**
     * Returns an array in the type of another one. (DJL's {@code toType} leaves the graph where the
     * type changes.)
     *
     * @param array an array of any floating point type
     * @param other the array whose type it gets
     * @param manager the manager of the result
     * @return the array in that type
     */
    public static NDArray inTypeOf(NDArray array, NDArray other, NDManager manager) {
        return TorchScope.array(manager, () -> tensor(array).to(tensor(other).scalar_type()));
    }

    /**
     * Returns an array in float32. (DJL's {@code toType} leaves the graph where the type changes.)
     *
     * @param array an array of any floating point type
     * @return the array in float32, attached to its manager
     */
    public static NDArray toFloat32(NDArray array) {
        return TorchScope.array(array.getManager(), () -> tensor(array).to(ScalarType.Float));
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

    /**
     * Puts arrays together along an axis. (DJL's {@code concat} of one array leaves the graph.)
     *
     * @param arrays the arrays, at least one
     * @param axis the axis
     * @return the arrays together; of one array the array itself
     */
    public static NDArray concat(NDList arrays, int axis) {
        return arrays.size() == 1 ? arrays.head() : NDArrays.concat(arrays, axis);
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
