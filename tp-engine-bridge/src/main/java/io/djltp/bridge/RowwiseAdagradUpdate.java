package io.djltp.bridge;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;

/** Adagrad with one number of state for each row. */
final class RowwiseAdagradUpdate extends WeightUpdate {

    private final float epsilon;
    private Tensor sums;

    RowwiseAdagradUpdate(Settings settings, float epsilon) {
        super(settings);
        this.epsilon = epsilon;
    }

    /** {@inheritDoc} */
    @Override
    void prepare(long classes, long features, TensorOptions options) {
        if (sums == null) {
            sums = zeros(options, classes);
        }
    }

    /** {@inheritDoc} */
    @Override
    void apply(GradientChunk chunk) {
        Tensor weight = chunk.weight;
        Tensor gradient = chunk.whole(settings);
        if (settings.weightDecay() != 0) {
            gradient.add_(weight, new Scalar(settings.weightDecay()));
        }
        Tensor squares = chunk.spare();
        torch.mul_out(squares, gradient, gradient);
        Tensor rows = chunk.rowsOf(sums, 0);
        Tensor means = squares.mean(new long[] {1}, false, new ScalarTypeOptional());
        rows.add_(means);
        chunk.setRows(sums, rows);
        Tensor divisor = torch.sqrt_out(means, rows).add_(new Scalar(epsilon));
        weight.addcdiv_(gradient, divisor.unsqueeze(1), new Scalar(-learningRate));
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(sums);
        sums = null;
    }
}
