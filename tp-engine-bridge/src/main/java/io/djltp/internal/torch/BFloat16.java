package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Numbers in bfloat16: the upper half of a float32. DJL's PyTorch engine has no arrays of them (to
 * create one ends the process), so here the 16 bits of a number lie in an array of another type of
 * 16 bits.
 */
public final class BFloat16 {

    /** The data type of an array whose elements are the bits of numbers in bfloat16. */
    public static final DataType BITS = DataType.FLOAT16;

    private BFloat16() {}

    /**
     * Returns the numbers, without loss.
     *
     * @param bits their bits, an array of {@link #BITS}
     * @param manager the manager of the result
     * @return the numbers in float32
     */
    public static NDArray toFloat32(NDArray bits, NDManager manager) {
        return TorchScope.array(manager, () -> numbers(bits).to(ScalarType.Float));
    }

    /**
     * Returns the bits of numbers, rounded to the nearest.
     *
     * @param numbers the numbers, of a floating point type, contiguous
     * @param manager the manager of the result
     * @return their bits, an array of {@link #BITS}
     */
    public static NDArray bitsOf(NDArray numbers, NDManager manager) {
        return TorchScope.array(
                manager,
                () -> {
                    Tensor own = TensorView.of(numbers).tensor().detach();
                    return own.to(ScalarType.BFloat16).view(ScalarType.Half);
                });
    }

    /**
     * Multiplies two matrices: products and sums as {@link Precision#BFLOAT16} has them, the result
     * rounded.
     *
     * @param left the bits of a matrix, [m, k]
     * @param right the bits of a matrix, [k, n]
     * @return the bits of the product, [m, n], attached to the manager of the left one
     */
    public static NDArray dot(NDArray left, NDArray right) {
        return TorchScope.arrayWithoutGraph(
                left.getManager(), () -> numbers(left).mm(numbers(right)).view(ScalarType.Half));
    }

    private static Tensor numbers(NDArray bits) {
        return TensorView.of(bits).tensor().view(ScalarType.BFloat16);
    }
}
