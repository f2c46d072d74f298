package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Rows of length one, and what a gradient with respect to them is with respect to the rows that
 * they were made of. A row of zeros has no direction: it stays zero, and has no gradient.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class UnitRows {

    private static final double ZERO = 1e-12; // as PyTorch's normalize

    private UnitRows() {}

    /**
     * Returns one over the length of each row, and zero for a row of zeros, as a part of the graph.
     *
     * @param rows the rows, [x1, ..., xn, features]
     * @param manager the manager of the result
     * @return the inverse lengths, [x1, ..., xn]
     */
    public static NDArray inverseLengths(NDArray rows, NDManager manager) {
        try (PointerScope scope = new PointerScope()) {
            return TensorView.toArray(inverseLengths(TensorView.of(rows).tensor()), manager);
        }
    }

    /**
     * Returns one over the length of each row, and zero for a row of zeros.
     *
     * @param rows the rows, [x1, ..., xn, features]
     * @return the inverse lengths, [x1, ..., xn]
     */
    public static Tensor inverseLengths(Tensor rows) {
        LibTorch.load(); // may be the first call of all
        Tensor lengths =
                torch.linalg_vector_norm(
                        rows, new Scalar(2.0), new long[] {-1}, false, new ScalarTypeOptional());
        Tensor isZero = lengths.lt(new Scalar(ZERO));
        // the inverse of infinity, and not of zero: its derivative is a number
        return lengths.masked_fill(isZero, new Scalar(Double.POSITIVE_INFINITY)).reciprocal();
    }

    /**
     * Changes a gradient with respect to unit rows to that with respect to the rows, in place: what
     * is along a row would change its length only.
     *
     * @param gradient the gradient, [rows, features]
     * @param directions the unit rows, [rows, features]
     * @param inverseLengths one over the lengths, [rows]
     * @param spare memory of the shape of the gradient
     */
    public static void project(
            Tensor gradient, Tensor directions, Tensor inverseLengths, Tensor spare) {
        LibTorch.load(); // may be the first call of all
        torch.mul_out(spare, gradient, directions);
        Tensor along = spare.sum(1).unsqueeze(1);
        gradient.addcmul_(along, directions, new Scalar(-1.0));
        gradient.mul_(inverseLengths.unsqueeze(1));
    }
}
