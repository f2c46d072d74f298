package io.djltp.bridge;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;

/** Adam, and AdamW with weight decay apart from the gradient. */
final class AdamUpdate extends WeightUpdate {

    private final float beta1;
    private final float beta2;
    private final float epsilon;
    private final boolean decoupled;
    private float correctedRate;
    private Tensor mean;
    private Tensor variance;

    AdamUpdate(Settings settings, float beta1, float beta2, float epsilon, boolean decoupled) {
        super(settings);
        this.beta1 = beta1;
        this.beta2 = beta2;
        this.epsilon = epsilon;
        this.decoupled = decoupled;
    }

    /** {@inheritDoc} */
    @Override
    public void begin(float rate, int step) {
        super.begin(rate, step);
        double correction = Math.sqrt(1 - Math.pow(beta2, step)) / (1 - Math.pow(beta1, step));
        correctedRate = (float) (rate * correction);
    }

    /** {@inheritDoc} */
    @Override
    void prepare(long classes, long features, TensorOptions options) {
        if (mean == null) {
            mean = zeros(options, classes, features);
            variance = zeros(options, classes, features);
        }
    }

    /** {@inheritDoc} */
    @Override
    void apply(GradientRows chunk) {
        Tensor weight = chunk.weight;
        Tensor gradient = chunk.whole(settings);
        float decay = settings.weightDecay();
        if (decay != 0 && decoupled) {
            weight.mul_(new Scalar(1 - learningRate * decay));
        } else if (decay != 0) {
            gradient.add_(weight, new Scalar(decay));
        }
        Tensor means = chunk.rowsOf(mean, 0);
        means.mul_(new Scalar(beta1)).add_(gradient, new Scalar(1 - beta1));
        Tensor variances = chunk.rowsOf(variance, 1);
        variances.mul_(new Scalar(beta2)).addcmul_(gradient, gradient, new Scalar(1 - beta2));
        Tensor divisor = chunk.spare();
        torch.sqrt_out(divisor, variances).add_(new Scalar(epsilon));
        weight.addcdiv_(means, divisor, new Scalar(-correctedRate));
        chunk.setRows(mean, means);
        chunk.setRows(variance, variances);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(mean);
        free(variance);
        mean = null;
        variance = null;
    }
}
