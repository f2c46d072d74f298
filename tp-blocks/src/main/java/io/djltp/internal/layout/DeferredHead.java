package io.djltp.internal.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

/**
 * A last layer that leaves its features instead of its logits, which it computes when a loss, an
 * evaluator or a reader of the predictions asks for them.
 */
public interface DeferredHead {

    /**
     * Returns the shape of the layer's weight over all ranks, by which errors name the layer.
     *
     * @return the shape, [classes, features]
     */
    Shape getShape();

    /**
     * Computes the rank's slice of the logits.
     *
     * @param features the features, [x1, ..., xn, features]
     * @return the logits, [x1, ..., xn, classes/p]
     */
    NDArray logits(NDArray features);

    /**
     * Returns how often the layer's weight has been updated. Features are of use until the next
     * time.
     *
     * @return the number of updates
     */
    long getUpdates();

    /**
     * Returns how many losses to be differentiated have been computed of the layer's features. Only
     * the last of them can be.
     *
     * @return the number of losses
     */
    long getLosses();

    /**
     * Returns whether a loss has updated the layer's weight since the last step.
     *
     * @return whether the weight has been updated
     */
    boolean isUpdatedInLoss();
}
