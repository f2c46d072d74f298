package io.djltp.bridge;

import ai.djl.ndarray.NDArray;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Row-wise Adagrad on a weight whose gradient is there: some rows at a time, so that each element
 * of the gradient and the weight goes through the memory once, and nothing of their size is made.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RowwiseAdagradStep {

    /** Elements of a weight that stay in the cache of one core together with their gradient. */
    private static final long BLOCK = 1 << 16;

    private RowwiseAdagradStep() {}

    /**
     * Moves a weight against its gradient. The elements of the gradient may be others afterwards.
     *
     * @param weight the weight, [rows, x1, ..., xn], or [rows], contiguous
     * @param gradient its gradient, of the same shape
     * @param sums the state, [rows]: the sums of the means of the squared gradients so far
     * @param settings weight decay, and what gradients are multiplied with and limited to
     * @param rate the learning rate
     * @param epsilon what is added to the root of the sum
     */
    public static void run(
            NDArray weight,
            NDArray gradient,
            NDArray sums,
            WeightUpdate.Settings settings,
            float rate,
            float epsilon) {
        try (TorchScope all = TorchScope.withoutGraph();
                FlushDenormals zeros = new FlushDenormals()) {
            long rows = weight.getShape().get(0);
            if (weight.size() == 0) {
                return;
            }
            long length = weight.size() / rows;
            Tensor values = TensorView.of(weight).tensor().detach().view(rows, length);
            Tensor gradients = TensorView.of(gradient).tensor().view(rows, length);
            Tensor state = TensorView.of(sums).tensor();
            long step = Math.max(1, BLOCK / length);
            Tensor squares = torch.empty_like(gradients.narrow(0, 0, Math.min(step, rows)));
            for (long first = 0; first < rows; first += step) {
                long count = Math.min(step, rows - first);
                try (PointerScope block = new PointerScope()) {
                    Tensor part = gradients.narrow(0, first, count);
                    Tensor moved = values.narrow(0, first, count);
                    prepare(part, moved, settings);
                    Tensor sum = state.narrow(0, first, count);
                    move(moved, part, squares.narrow(0, 0, count), sum, rate, epsilon);
                }
            }
        }
    }

    private static void prepare(Tensor gradient, Tensor weight, WeightUpdate.Settings settings) {
        if (settings.rescale() != 1) {
            gradient.mul_(new Scalar(settings.rescale()));
        }
        if (settings.clip() > 0) {
            gradient.clamp_max_(new Scalar(settings.clip())); // from above only, as DJL does
        }
        if (settings.weightDecay() != 0) {
            gradient.add_(weight, new Scalar(settings.weightDecay()));
        }
    }

    /**
     * Moves some rows.
     *
     * @param weight the rows, [rows, features]
     * @param gradient their gradient
     * @param squares memory of the same shape
     * @param sums their state, [rows]
     * @param rate the learning rate
     * @param epsilon what is added to the root of the sum
     */
    static void move(
            Tensor weight,
            Tensor gradient,
            Tensor squares,
            Tensor sums,
            float rate,
            float epsilon) {
        torch.mul_out(squares, gradient, gradient);
        Tensor means = means(squares);
        sums.add_(means);
        Tensor divisor = torch.sqrt_out(means, sums).add_(new Scalar(epsilon));
        weight.addcdiv_(gradient, divisor.unsqueeze(1), new Scalar(-rate));
    }

    private static Tensor means(Tensor squares) {
        return squares.size(1) == 1
                ? squares.squeeze(1) // of a bias: the mean of one number each takes its time
                : squares.mean(new long[] {1}, false, new ScalarTypeOptional());
    }
}
