package io.djltp.loss;

import ai.djl.ndarray.NDManager;

import io.djltp.head.AddedGradient;
import io.djltp.rank.ParticipantStep;

/**
 * Another use of the weight of a {@link FusedHead} in the same network, such as an embedding's: the
 * head updates the weight by the gradients of both.
 */
public interface OtherUse extends AutoCloseable {

    /**
     * Returns the gradient of the backward passes since the last step, of all rows of the batch,
     * and forgets it. All ranks call it in every step.
     *
     * @param step the step
     * @param scope the manager of what is made
     * @return the gradient of some rows, maybe of none
     */
    AddedGradient take(ParticipantStep step, NDManager scope);

    /**
     * Takes the scale of the loss from the gradients of backward passes since the last step.
     *
     * @param factor what they have to be multiplied with
     * @return whether all of this rank are finite
     */
    boolean unscale(float factor);

    /**
     * Sets whether backward passes to come leave a gradient.
     *
     * @param trained whether the weight is trained now
     */
    void setTrained(boolean trained);

    /** Forgets the gradients of backward passes since the last step. */
    void zeroGradient();

    /** Frees the memory. */
    @Override
    void close();
}
