package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.head.AddedGradient;
import io.djltp.head.FusedCrossEntropy;
import io.djltp.update.GradientScale;

/**
 * The sum of the gradients of the batches of a step before the last, of a head that keeps what the
 * gradient of one batch is made of; and those of parameters that were frozen when their step came,
 * until they are thawed. It takes as much memory as the rank's shard of the weight in 32 bits, from
 * the second batch of a step on.
 */
final class AccumulatedGradient implements AutoCloseable {

    private NDArray ofWeight; // float32 [classes/p, features], or null before the first
    private NDArray ofBias;
    private NDArray ofLastBias;
    private HeadParts some = HeadParts.NONE;

    /**
     * Adds the gradient of a loss.
     *
     * @param function the function, whose pass this uses up
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param loss the loss
     */
    void add(FusedCrossEntropy function, NDArray weight, NDArray bias, LastLoss loss) {
        HeadParts parts = loss.parts();
        if (parts.weight() && ofWeight == null) {
            ofWeight = zeros(weight);
        }
        if (parts.bias() && ofLastBias == null) {
            ofLastBias = zeros(bias);
        }
        function.accumulate(
                weight,
                bias,
                parts.bias() ? ofLastBias : null,
                parts.weight() ? ofWeight : null,
                !some.weight(),
                loss.scale());
        if (parts.bias() && some.bias()) {
            ofBias.addi(ofLastBias);
        } else if (parts.bias()) {
            close(ofBias);
            ofBias = ofLastBias.duplicate();
            ofBias.detach();
        }
        some = some.or(parts);
    }

    /**
     * Adds a gradient of the weight.
     *
     * @param weight the rank's shard of the weight
     * @param added the gradient
     */
    void add(NDArray weight, AddedGradient added) {
        if (!some.weight()) {
            close(ofWeight);
            ofWeight = zeros(weight);
        }
        added.addTo(ofWeight);
        some = new HeadParts(true, some.bias());
    }

    private static NDArray zeros(NDArray like) {
        NDArray zeros = like.getManager().zeros(like.getShape(), DataType.FLOAT32);
        zeros.detach();
        return zeros;
    }

    /** Returns the sum of the weight's gradients, or {@code null} if there is none. */
    NDArray ofWeight() {
        return some.weight() ? ofWeight : null;
    }

    /** Returns the sum of the bias's gradients, or {@code null} if there is none. */
    NDArray ofBias() {
        return some.bias() ? ofBias : null;
    }

    /** Multiplies the sums, and returns whether they are finite. */
    boolean unscale(float factor) {
        return (!some.weight() || GradientScale.takeFrom(ofWeight, factor))
                & (!some.bias() || GradientScale.takeFrom(ofBias, factor));
    }

    /** Forgets sums, and keeps their memory for the next step. */
    void drop(HeadParts dropped) {
        some = some.without(dropped);
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
