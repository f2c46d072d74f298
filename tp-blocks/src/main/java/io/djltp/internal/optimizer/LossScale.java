package io.djltp.internal.optimizer;

import ai.djl.metric.Metrics;

import io.djltp.rank.LossScaling;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What the loss of a training is multiplied with, and how that follows the gradients, see {@link
 * LossScaling}. The same in all processes, which hear alike whether the gradients of a step are
 * finite.
 */
public final class LossScale {

    private static final Logger logger = LoggerFactory.getLogger(LossScale.class);

    private final @Nullable LossScaling settings; // or null: the loss is not scaled
    private State state;

    /**
     * Creates a scale.
     *
     * @param settings the settings, or {@code null} for a loss that is not scaled
     */
    public LossScale(@Nullable LossScaling settings) {
        this.settings = settings;
        state = new State(settings == null ? 1 : settings.getInitialScale(), 0, 0);
    }

    /**
     * What the next step depends on.
     *
     * @param scale the scale
     * @param goodSteps the steps since it has changed
     * @param skippedSteps the steps of the whole training that were left out
     */
    public record State(float scale, int goodSteps, long skippedSteps) {}

    /** {@return whether the loss is scaled} */
    public boolean isUsed() {
        return settings != null;
    }

    /** {@return what the loss is multiplied with} */
    public float get() {
        return state.scale;
    }

    /** {@return what the next step depends on} */
    public State getState() {
        return state;
    }

    /**
     * Goes on with the state of another training.
     *
     * @param other its state
     */
    public void setState(State other) {
        state = other;
    }

    /**
     * Adds the scale to metrics as {@code loss_scale}, if the loss is scaled.
     *
     * @param metrics the metrics of the trainer, or {@code null}
     */
    public void addTo(@Nullable Metrics metrics) {
        if (metrics != null && isUsed()) {
            metrics.addMetric("loss_scale", state.scale);
        }
    }

    /**
     * Ends a step.
     *
     * @param finite whether all of its gradients were finite
     * @param step the number of the step, for messages
     * @throws ArithmeticException if they were not, and the scale cannot be less
     */
    public void update(boolean finite, long step) {
        if (settings == null) {
            throw new IllegalStateException("The loss is not scaled");
        }
        if (finite) {
            boolean due = state.goodSteps + 1 == settings.getGrowthInterval();
            float grown = state.scale * settings.getGrowthFactor();
            // a scale that was infinite would be so for ever
            float next = due && Float.isFinite(grown) ? grown : state.scale;
            state = new State(next, due ? 0 : state.goodSteps + 1, state.skippedSteps);
            return;
        }
        float less = state.scale * settings.getBackoffFactor();
        if (less < settings.getLeastScale()) {
            throw new ArithmeticException(
                    "The gradients of step "
                            + step
                            + " hold NaN or infinite values with a loss scale of "
                            + state.scale
                            + " too, and the least is "
                            + settings.getLeastScale()
                            + ": the scale is not their cause. Look at the loss and at the input of"
                            + " this step; the weights are as they were before");
        }
        logger.info(
                "The gradients of step {} are not finite: the step is left out, and the loss scale"
                        + " {} is now {}",
                step,
                state.scale,
                less);
        state = new State(less, 0, state.skippedSteps + 1);
    }
}
