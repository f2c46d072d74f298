package io.djltp.bridge;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;

/**
 * How the weights of a rank are updated, some of their rows at a time, by a gradient that is not
 * kept: what DJL's optimizers do to a whole weight, with the same result. Holds the state of one
 * weight, in float32.
 *
 * <p>Of a step that computes with a part of the classes, the rows of the others and their state are
 * neither read nor written: they do not decay, and their momentum waits. The number of the step, by
 * which Adam corrects its means, is that of all steps.
 */
@SuppressWarnings("try") // a scope is used by being open
public abstract class WeightUpdate implements AutoCloseable {

    /**
     * What all updates have in common.
     *
     * @param weightDecay the weight decay
     * @param rescale what gradients are multiplied with
     * @param clip the largest value of a gradient after that, not limited if not above 0
     */
    public record Settings(float weightDecay, float rescale, float clip) {

        /** No weight decay, and gradients as they are. */
        public static final Settings DEFAULT = new Settings(0, 1, 0);
    }

    final Settings settings;
    float learningRate;

    WeightUpdate(Settings settings) {
        LibTorch.load(); // may be the first call of all
        this.settings = settings;
    }

    /**
     * Returns the update of stochastic gradient descent. Without momentum it has no state and needs
     * no memory for a gradient.
     *
     * @param settings what all updates have in common
     * @param momentum the momentum, or 0
     * @return the update
     */
    public static WeightUpdate sgd(Settings settings, float momentum) {
        return new SgdUpdate(settings, momentum);
    }

    /**
     * Returns the update of Adam.
     *
     * @param settings what all updates have in common
     * @param beta1 the decay of the mean
     * @param beta2 the decay of the variance
     * @param epsilon what is added to the root of the variance
     * @param decoupled whether weights decay apart from the gradient: AdamW
     * @return the update
     */
    public static WeightUpdate adam(
            Settings settings, float beta1, float beta2, float epsilon, boolean decoupled) {
        return new AdamUpdate(settings, beta1, beta2, epsilon, decoupled);
    }

    /**
     * Returns the update of Adagrad with one number of state for each row: the sum of the means of
     * its squared gradients.
     *
     * @param settings what all updates have in common
     * @param epsilon what is added to the root of the sum
     * @return the update
     */
    public static WeightUpdate rowwiseAdagrad(Settings settings, float epsilon) {
        return new RowwiseAdagradUpdate(settings, epsilon);
    }

    /**
     * Begins a step.
     *
     * @param rate the learning rate
     * @param step the number of the step, from 1
     */
    public void begin(float rate, int step) {
        learningRate = rate;
    }

    /**
     * Makes the state, if there is none.
     *
     * @param classes the rows of the weight
     * @param features the length of a row
     * @param options where the state lies, and that it is in float32
     */
    abstract void prepare(long classes, long features, TensorOptions options);

    /** Updates some rows; other rows may be updated by other threads at the same time. */
    abstract void apply(GradientRows chunk);

    /** Returns zeros that live until they are closed. */
    static Tensor zeros(TensorOptions options, long... shape) {
        try (PointerScope scope = new PointerScope()) {
            return torch.zeros(shape, options).retainReference();
        }
    }

    static void free(Tensor state) {
        if (state != null) {
            state.close();
        }
    }

    /** Frees the state. */
    @Override
    public abstract void close();
}
