package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

import java.util.Map;

/**
 * Adagrad: {@code sum += gradient^2}, {@code weight -= rate * gradient / (sqrt(sum) + epsilon)}.
 * PyTorch's operator computes the same, which exists for processors only.
 */
final class AdagradUpdate extends WeightUpdate {

    private final float epsilon;
    private Tensor sums; // [rows, features]: of the squared gradients so far
    private Tensor number; // of the step, which PyTorch's operator wants and does not use

    AdagradUpdate(Settings settings, float epsilon) {
        super(settings);
        this.epsilon = epsilon;
    }

    /** {@inheritDoc} */
    @Override
    boolean isStill() {
        return settings.weightDecay() == 0;
    }

    /** {@inheritDoc} */
    @Override
    boolean isOneOperation(boolean onGpu) {
        return !onGpu && super.isOneOperation(onGpu);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(long classes, long features, TensorOptions options) {
        if (sums == null) {
            sums = zeros(options, classes, features);
            number = zeros(float32(options)).fill_(new Scalar(1f));
        }
    }

    /** {@inheritDoc} */
    @Override
    public void apply(GradientRows chunk) {
        Tensor gradient = chunk.whole(settings);
        Tensor state = chunk.rowsOf(sums, 0);
        Tensor weight = chunk.weight;
        if (weight.is_cuda()) {
            if (settings.weightDecay() != 0) {
                gradient.add_(weight, new Scalar(settings.weightDecay()));
            }
            state.addcmul_(gradient, gradient);
            Tensor divisor = state.sqrt().add_(new Scalar(epsilon));
            weight.addcdiv_(gradient, divisor, new Scalar(-learningRate));
        } else {
            double decay = settings.weightDecay();
            FusedOperator.adagrad(weight, gradient, state, number, learningRate, decay, epsilon);
        }
        chunk.setRows(sums, state);
    }

    /** {@inheritDoc} */
    @Override
    protected Map<String, Tensor> state() {
        return sums == null ? Map.of() : Map.of("sums", sums);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(sums);
        free(number);
        sums = null;
        number = null;
    }
}
