package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.nn.core.Linear;

import io.djltp.internal.torch.TorchOperations;

import java.util.function.Function;

/**
 * The experts of a rank: two linear layers each, with an activation between them.
 *
 * <pre>
 *   y = act(x W1^T) W2^T                plain
 *   y = (act(x Wg^T) * (x W1^T)) W2^T   gated
 * </pre>
 *
 * @param hidden W1 of each expert, [experts, hidden, features]
 * @param gate Wg of each expert, the same shape, or {@code null}
 * @param output W2 of each expert, [experts, features, hidden]
 * @param activation the activation, elementwise
 */
record ExpertLayers(
        NDArray hidden, NDArray gate, NDArray output, Function<NDArray, NDArray> activation) {

    /**
     * Computes the experts. One without a row takes part with none, so that all passes have the
     * same operations, and its gradient is zero.
     *
     * @param rows the rows, those of the first expert first, [rows, features]
     * @param counts the number of rows of each expert
     * @return the outputs, in the same order
     */
    NDArray forward(NDArray rows, long[] counts) {
        NDList parts = TorchOperations.split(rows, counts);
        NDList first = TorchOperations.unstack(hidden, rows.getManager());
        NDList gates = gate == null ? null : TorchOperations.unstack(gate, rows.getManager());
        NDList last = TorchOperations.unstack(output, rows.getManager());
        NDList outputs = new NDList();
        for (int e = 0; e < counts.length; e++) {
            NDArray x = parts.get(e);
            NDArray h = linear(x, first.get(e)); // [rows of e, hidden]
            h =
                    gates == null
                            ? activation.apply(h)
                            : activation.apply(linear(x, gates.get(e))).mul(h);
            outputs.add(linear(h, last.get(e)));
        }
        // DJL takes a concatenation of one array for a copy
        return outputs.size() == 1 ? outputs.head() : NDArrays.concat(outputs);
    }

    private static NDArray linear(NDArray x, NDArray weight) {
        return Linear.linear(x, weight).singletonOrThrow();
    }
}
