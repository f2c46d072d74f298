package io.djltp.optimizer;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.WeightUpdate;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Adagrad with one number of state for each row of a parameter: the sum of the means of the row's
 * squared gradients. A large embedding or head has hardly more state than under SGD, and rows that
 * are rarely met still learn fast.
 *
 * <p>A row moves by {@code -rate * gradient / (sqrt(sum) + epsilon)}. Of a parameter with one axis
 * every element is a row, as in ordinary Adagrad. Works under DJL's own trainer too.
 */
public final class RowwiseAdagrad extends Optimizer {

    private final ParameterTracker learningRateTracker;
    private final float epsilon;
    private final Map<String, Map<Device, WeightUpdate>> updates = new ConcurrentHashMap<>();

    private RowwiseAdagrad(Builder builder) {
        super(builder);
        learningRateTracker = builder.learningRateTracker;
        epsilon = builder.epsilon;
    }

    /** {@inheritDoc} */
    @Override
    public void update(String parameterId, NDArray weight, NDArray grad) {
        int count = updateCount(parameterId);
        float rate = learningRateTracker.getNewValue(parameterId, count);
        WeightUpdate update =
                updates.computeIfAbsent(parameterId, key -> new ConcurrentHashMap<>())
                        .computeIfAbsent(weight.getDevice(), device -> newUpdate());
        update.begin(rate, count);
        update.run(weight, grad);
        Autograd.zeroGradient(weight); // used up, as DJL's optimizers do; grad may be a copy
    }

    private WeightUpdate newUpdate() {
        return WeightUpdate.rowwiseAdagrad(
                new WeightUpdate.Settings(getWeightDecay(), rescaleGrad, clipGrad), epsilon);
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
         * Sets the learning rate. Default: 0.01. That is little for a large table or head: begin
         * with 0.1.
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
