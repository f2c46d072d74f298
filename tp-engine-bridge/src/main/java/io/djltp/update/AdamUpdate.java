package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;

import java.util.Map;

/** Adam, and AdamW with weight decay apart from the gradient. */
final class AdamUpdate extends WeightUpdate {

    private final float beta1;
    private final float beta2;
    private final float epsilon;
    private final boolean decoupled;
    private FusedOperator.AdamStep step;
    private int number;
    private Tensor mean;
    private Tensor variance;
    private Tensor numberOnDevice;

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
        number = step;
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(long classes, long features, TensorOptions options) {
        if (mean == null) {
            mean = zeros(options, classes, features);
            variance = zeros(options, classes, features);
            numberOnDevice = zeros(float32(options));
        }
        numberOnDevice.fill_(new Scalar((float) number));
        // DJL adds epsilon to the root as it is, PyTorch to the corrected one
        double corrected = epsilon / Math.sqrt(1 - Math.pow(beta2, number));
        step =
                new FusedOperator.AdamStep(
                        learningRate,
                        beta1,
                        beta2,
                        settings.weightDecay(),
                        corrected,
                        numberOnDevice);
    }

    /** {@inheritDoc} */
    @Override
    public void apply(GradientRows chunk) {
        Tensor gradient = chunk.whole(settings);
        Tensor means = chunk.rowsOf(mean, 0);
        Tensor variances = chunk.rowsOf(variance, 1);
        FusedOperator.adam(chunk.weight, gradient, means, variances, step, decoupled);
        chunk.setRows(mean, means);
        chunk.setRows(variance, variances);
    }

    /** {@inheritDoc} */
    @Override
    protected Map<String, Tensor> state() {
        return mean == null ? Map.of() : Map.of("mean", mean, "variance", variance);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(mean);
        free(variance);
        free(numberOnDevice);
        mean = null;
        variance = null;
        numberOnDevice = null;
    }
}
