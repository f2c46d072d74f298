package io.djltp.rank;

import io.djltp.internal.Errors;

/**
 * How the scale of a loss follows the gradients, for layers in float16: it is halved, and the step
 * left out, when a gradient is not finite, and doubled after many steps in which all were. The
 * trainer multiplies what is differentiated with it and takes it back before the update; what is
 * reported as the loss is not scaled, and the loops of users stay as they are.
 *
 * <pre>{@code
 * ParallelConfig.builder().optLossScaling(LossScaling.builder().build())
 * }</pre>
 *
 * <p>The rule, and what is set if nothing is said, are those of PyTorch's {@code
 * torch.amp.GradScaler} (Micikevicius et al., 2018, <a
 * href="https://arxiv.org/abs/1710.03740">arXiv:1710.03740</a>, section 3.2). Beyond it, a scale
 * that falls below a least one ends the training: gradients that no scale makes finite have another
 * cause.
 */
public final class LossScaling {

    private final float initialScale;
    private final float growthFactor;
    private final float backoffFactor;
    private final int growthInterval;
    private final float leastScale;

    private LossScaling(Builder builder) {
        initialScale = builder.initialScale;
        growthFactor = builder.growthFactor;
        backoffFactor = builder.backoffFactor;
        growthInterval = builder.growthInterval;
        leastScale = builder.leastScale;
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return the numbers, in words} */
    @Override
    public String toString() {
        return "from %s, times %s after %d steps and %s back, at least %s"
                .formatted(initialScale, growthFactor, growthInterval, backoffFactor, leastScale);
    }

    /** {@return the scale of the first step} */
    public float getInitialScale() {
        return initialScale;
    }

    /** {@return what the scale is multiplied with after {@link #getGrowthInterval} good steps} */
    public float getGrowthFactor() {
        return growthFactor;
    }

    /** {@return what the scale is multiplied with when a gradient is not finite} */
    public float getBackoffFactor() {
        return backoffFactor;
    }

    /** {@return after how many good steps, one after the other, the scale grows} */
    public int getGrowthInterval() {
        return growthInterval;
    }

    /** {@return the least scale} */
    public float getLeastScale() {
        return leastScale;
    }

    /** The builder to construct a {@link LossScaling}. */
    public static final class Builder {

        private float initialScale = 65536;
        private float growthFactor = 2;
        private float backoffFactor = 0.5f;
        private int growthInterval = 2000;
        private float leastScale = 1f / 65536;

        private Builder() {}

        /**
         * Sets the scale of the first step. Default: 65536.
         *
         * @param scale the scale, above 0 and finite; powers of 2 change no bit of a gradient
         * @return this builder
         */
        public Builder optInitialScale(float scale) {
            initialScale = scale;
            return this;
        }

        /**
         * Sets what the scale is multiplied with after many good steps. Default: 2.
         *
         * @param factor the factor, above 1
         * @return this builder
         */
        public Builder optGrowthFactor(float factor) {
            growthFactor = factor;
            return this;
        }

        /**
         * Sets what the scale is multiplied with when a gradient is not finite. Default: 0.5.
         *
         * @param factor the factor, above 0 and below 1
         * @return this builder
         */
        public Builder optBackoffFactor(float factor) {
            backoffFactor = factor;
            return this;
        }

        /**
         * Sets after how many good steps, one after the other, the scale grows. Default: 2000.
         *
         * @param steps the number of steps, 1 or more
         * @return this builder
         */
        public Builder optGrowthInterval(int steps) {
            growthInterval = steps;
            return this;
        }

        /**
         * Sets the least scale: a training whose gradients are not finite with it ends with an
         * error. Default: 1/65536.
         *
         * @param scale the scale, above 0 and up to the first
         * @return this builder
         */
        public Builder optLeastScale(float scale) {
            leastScale = scale;
            return this;
        }

        /**
         * Builds the {@link LossScaling}.
         *
         * @return the settings
         * @throws IllegalArgumentException if a value is out of its range
         */
        public LossScaling build() {
            check(
                    initialScale > 0 && Float.isFinite(initialScale),
                    "The first loss scale",
                    "above 0 and finite",
                    initialScale);
            check(
                    growthFactor > 1 && Float.isFinite(growthFactor),
                    "The growth factor of the loss scale",
                    "above 1 and finite",
                    growthFactor);
            check(
                    backoffFactor > 0 && backoffFactor < 1,
                    "The backoff factor of the loss scale",
                    "above 0 and below 1",
                    backoffFactor);
            check(
                    growthInterval >= 1,
                    "The growth interval of the loss scale",
                    "1 step or more",
                    growthInterval);
            check(
                    leastScale > 0 && leastScale <= initialScale,
                    "The least loss scale",
                    "above 0 and up to the first, " + initialScale,
                    leastScale);
            return new LossScaling(this);
        }

        private static void check(boolean right, String what, String range, Number value) {
            Errors.check(right, "%s must be %s, not %s", what, range, value);
        }
    }
}
