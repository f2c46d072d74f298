package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.head.FusedCrossEntropy;
import io.djltp.update.GradientScale;

/**
 * The sum of the gradients of the batches of a step before the last, of a head that keeps what the
 * gradient of one batch is made of. It takes as much memory as the rank's shard of the weight in 32
 * bits, from the second batch of a step on.
 */
final class AccumulatedGradient implements AutoCloseable {

    private NDArray ofWeight; // float32 [classes/p, features], or null before the first
    private NDArray ofBias;
    private NDArray ofLastBias;
    private boolean some;

    /**
     * Adds the gradient of the last loss.
     *
     * @param function the function, whose pass this uses up
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param frozen whether the weight has no gradient
     * @param scale the factor of the loss in the backward pass
     */
    void add(
            FusedCrossEntropy function, NDArray weight, NDArray bias, boolean frozen, float scale) {
        if (!frozen && ofWeight == null) {
            ofWeight = zeros(weight);
        }
        if (bias != null && ofLastBias == null) {
            ofLastBias = zeros(bias);
        }
        NDArray sum = frozen ? null : ofWeight;
        function.accumulate(weight, bias, ofLastBias, sum, !some, scale);
        if (bias != null && some) {
            ofBias.addi(ofLastBias);
        } else if (bias != null) {
            close(ofBias);
            ofBias = ofLastBias.duplicate();
            ofBias.detach();
        }
        some = true;
    }

    private static NDArray zeros(NDArray like) {
        NDArray zeros = like.getManager().zeros(like.getShape(), DataType.FLOAT32);
        zeros.detach();
        return zeros;
    }

    /** Returns the sum of the weight's gradients, or {@code null} if there is none. */
    NDArray ofWeight() {
        return some ? ofWeight : null;
    }

    /** Returns the sum of the bias's gradients, or {@code null} if there is none. */
    NDArray ofBias() {
        return some ? ofBias : null;
    }

    /** Multiplies the sums, and returns whether they are finite. */
    boolean unscale(float factor) {
        return !some
                || (ofWeight == null || GradientScale.takeFrom(ofWeight, factor))
                        & (ofBias == null || GradientScale.takeFrom(ofBias, factor));
    }

    /** Forgets the sums, and keeps their memory for the next step. */
    void clear() {
        some = false;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        close(ofWeight);
        close(ofBias);
        close(ofLastBias);
    }

    private static void close(NDArray array) {
        if (array != null) {
            array.close();
        }
    }
}
