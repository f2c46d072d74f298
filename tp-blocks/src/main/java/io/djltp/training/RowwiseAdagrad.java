package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.bridge.Autograd;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Adagrad with one number of state for each row of a parameter: the sum of the means of the row's
 * squared gradients. A large embedding or head has hardly more state than under SGD, and rows that
 * are rarely met still learn fast.
 *
 * <p>A row moves by \(-\eta g / (\sqrt{s} + \epsilon)\). Of a parameter with one axis every element
 * is a row, as in ordinary Adagrad.
 */
public final class RowwiseAdagrad extends Optimizer {

    private final ParameterTracker learningRateTracker;
    private final float epsilon;
    private final Map<String, Map<Device, NDArray>> sums = new ConcurrentHashMap<>();

    private RowwiseAdagrad(Builder builder) {
        super(builder);
        learningRateTracker = builder.learningRateTracker;
        epsilon = builder.epsilon;
    }

    /** {@inheritDoc} */
    @Override
    public void update(String parameterId, NDArray weight, NDArray grad) {
        float rate = learningRateTracker.getNewValue(parameterId, updateCount(parameterId));
        try (NDManager scope = weight.getManager().newSubManager()) {
            scope.tempAttachAll(weight, grad);
            NDArray gradient = grad.mul(rescaleGrad);
            if (clipGrad > 0) {
                gradient = gradient.minimum(clipGrad);
            }
            NDArray values = weight.stopGradient();
            if (getWeightDecay() != 0) {
                gradient = gradient.add(values.mul(getWeightDecay()));
            }
            int axes = gradient.getShape().dimension();
            NDArray means = gradient.square();
            for (int axis = axes - 1; axis > 0; axis--) {
                means = means.mean(new int[] {axis}, true);
            }
            NDArray first = means.zerosLike();
            NDArray sum = withDefaultState(sums, parameterId, weight.getDevice(), key -> first);
            sum.addi(means);
            values.subi(gradient.div(sum.sqrt().add(epsilon)).mul(rate));
            Autograd.zeroGradient(weight); // used up, as DJL's optimizers do
        }
    }

    /**
     * Creates a builder to build a {@code RowwiseAdagrad}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link RowwiseAdagrad}. */
    public static final class Builder extends OptimizerBuilder<Builder> {

        private ParameterTracker learningRateTracker = Tracker.fixed(0.01f);
        private float epsilon = 1e-8f;

        Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets the learning rate. Default: 0.01.
         *
         * @param tracker the tracker of the learning rate
         * @return this builder
         */
        public Builder optLearningRateTracker(ParameterTracker tracker) {
            this.learningRateTracker = tracker;
            return this;
        }

        /**
         * Sets what is added to the root of the sum. Default: 1e-8.
         *
         * @param value the small number
         * @return this builder
         */
        public Builder optEpsilon(float value) {
            this.epsilon = value;
            return this;
        }

        /**
         * Builds the optimizer.
         *
         * @return the optimizer
         */
        public RowwiseAdagrad build() {
            return new RowwiseAdagrad(this);
        }
    }
}
