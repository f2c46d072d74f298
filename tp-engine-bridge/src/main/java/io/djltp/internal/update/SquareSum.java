package io.djltp.internal.update;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.List;

/**
 * The sum of the squares of gradients in float64, whatever their type: the square of their norm. It
 * stays on the device. On a CPU it takes 1 MiB of memory, on a GPU 128 MiB.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class SquareSum implements AutoCloseable {

    private static final long CHUNK = 1L << 17; // in float64 1 MiB, which stays in the cache
    private static final long CHUNK_OF_GPU = 1L << 24; // enough work for a kernel

    private final NDArray sum; // [1]

    /**
     * Begins at zero.
     *
     * @param manager the manager of the sum
     * @param device where the gradients are
     */
    public SquareSum(NDManager manager, Device device) {
        sum = manager.zeros(new Shape(1), DataType.FLOAT64, device);
    }

    /**
     * Adds the squares of some elements.
     *
     * @param gradient the gradient
     * @param axis the axis of the ranges
     * @param ranges which of the gradient's elements are counted
     * @param part which part of them, along axis 0: others count the other parts
     * @param parts the number of parts
     */
    public void add(TensorView gradient, int axis, List<ShardRange> ranges, int part, int parts) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor tensor = gradient.tensor();
            Tensor whole = tensor.dim() == 0 ? tensor.view(1) : tensor;
            Tensor total = TensorView.of(sum).tensor();
            for (ShardRange range : ranges) {
                Tensor counted = whole.narrow(axis, range.start(), range.length());
                ShardRange own = ShardRange.balanced(counted.size(0), part, parts);
                add(total, counted.narrow(0, own.start(), own.length()).reshape(-1));
            }
        }
    }

    private static void add(Tensor total, Tensor elements) {
        long size = elements.size(0);
        long most = elements.is_cuda() ? CHUNK_OF_GPU : CHUNK;
        for (long start = 0; start < size; start += most) {
            try (TorchScope scope = TorchScope.withoutGraph()) {
                Tensor chunk = elements.narrow(0, start, Math.min(most, size - start));
                Tensor wide = chunk.to(ScalarType.Double);
                total.add_(wide.dot(wide));
            }
        }
    }

    /**
     * Multiplies a gradient in place. (DJL's {@code muli} makes an array of the number first.)
     *
     * @param gradient the gradient
     * @param factor the factor
     */
    public static void scale(TensorView gradient, float factor) {
        try (TorchScope scope = TorchScope.withoutGraph();
                Scalar number = new Scalar(factor)) {
            gradient.tensor().mul_(number);
        }
    }

    /**
     * Does so, and looks whether the gradient was finite.
     *
     * @param gradient the gradient, of any floating type
     * @param factor one divided by the scale of the loss
     * @return whether all its elements were finite
     */
    public static boolean unscale(NDArray gradient, float factor) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            TensorView view = TensorView.of(gradient);
            scale(view, factor);
            return HostReads.number(view.tensor().mul(new Scalar(0f)).sum()) == 0; // or NaN
        }
    }

    /**
     * Returns the sum so far.
     *
     * @return the sum, [1] in float64, which may be reduced over ranks in place
     */
    public NDArray get() {
        return sum;
    }

    /** Frees the sum. */
    @Override
    public void close() {
        sum.close();
    }
}
