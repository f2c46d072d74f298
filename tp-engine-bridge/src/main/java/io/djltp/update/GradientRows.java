package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;

/** The gradient of some rows of a weight, and the rows: what a {@link WeightUpdate} works on. */
public abstract class GradientRows {

    /** The rows of the weight, [length, features], float32: updated in place. */
    public final Tensor weight;

    /**
     * Creates the gradient of some rows.
     *
     * @param weight the rows, [length, features], float32
     */
    protected GradientRows(Tensor weight) {
        this.weight = weight;
    }

    /**
     * Returns whether the gradient is in memory already: then nothing is gained by {@link #addTo}.
     *
     * @return whether it is
     */
    public boolean isMade() {
        return false;
    }

    /**
     * Computes {@code target = keep * target + factor * gradient}.
     *
     * @param target what is added to, [length, features]
     * @param keep the factor of the target
     * @param factor the factor of the gradient
     */
    public void addTo(Tensor target, float keep, float factor) {
        target.mul_(new Scalar(keep)).add_(gradient(factor));
    }

    /**
     * Returns the gradient times a factor, in memory that may be changed.
     *
     * @param factor the factor
     * @return the product, [length, features]
     */
    public abstract Tensor gradient(float factor);

    /**
     * Returns memory of the size of the gradient that is free until the next rows.
     *
     * @return the memory, [length, features]
     */
    public abstract Tensor spare();

    /**
     * Returns the rows of a state that belong to these, to be changed in place.
     *
     * @param state the state of all rows, [rows] or [rows, features]
     * @param number tells the states of one update apart, 0 or 1
     * @return the rows, which {@link #setRows} takes
     */
    public abstract Tensor rowsOf(Tensor state, int number);

    /**
     * Writes changed rows of a state back, if they are a copy.
     *
     * @param state the state of all rows
     * @param rows what {@link #rowsOf} has returned, changed
     */
    public abstract void setRows(Tensor state, Tensor rows);

    /** Returns the gradient as {@link WeightUpdate}s of DJL see it, in memory that is reused. */
    final Tensor whole(WeightUpdate.Settings settings) {
        Tensor gradient = gradient(settings.rescale());
        if (settings.isClipped()) {
            gradient.clamp_max_(new Scalar(settings.clip())); // from above only, as DJL does
        }
        return gradient;
    }
}
