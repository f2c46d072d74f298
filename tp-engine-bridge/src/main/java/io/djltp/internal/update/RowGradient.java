package io.djltp.internal.update;

import io.djltp.internal.Errors;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

/** The gradient of some rows of a weight, and the rows: what a {@link WeightUpdate} works on. */
public abstract class RowGradient {

    /** The rows of the weight, [length, features], float32: updated in place. */
    public final Tensor weight;

    private final @Nullable Tensor
            gradient; // in the type that is computed in, null if it is not made

    /**
     * Creates a gradient that is computed where it is wanted.
     *
     * @param weight the rows, [length, features], float32
     */
    protected RowGradient(Tensor weight) {
        this(weight, null);
    }

    /** Creates a gradient that is in memory already. */
    RowGradient(Tensor weight, @Nullable Tensor gradient) {
        this.weight = weight;
        this.gradient = gradient;
    }

    private Tensor made() {
        return Errors.present(gradient, "A gradient that is not in memory must be computed");
    }

    /** Returns whether the gradient is in memory: then nothing is gained by adding it at once. */
    final boolean isMade() {
        return gradient != null;
    }

    /**
     * Computes {@code target = beta * target + alpha * gradient}.
     *
     * @param target what is added to, [length, features]
     * @param beta the factor of the target
     * @param alpha the factor of the gradient
     */
    public void accumulateInto(Tensor target, float beta, float alpha) {
        target.mul_(new Scalar(beta)).add_(gradient(alpha));
    }

    /**
     * Returns the gradient times a factor, in memory that may be changed.
     *
     * @param factor the factor
     * @return the product, [length, features]
     */
    public Tensor gradient(float factor) {
        return factor == 1 ? made() : made().mul_(new Scalar(factor));
    }

    /**
     * Returns memory of the size of the gradient that is free until the next rows.
     *
     * @return the memory, [length, features]
     */
    public Tensor spare() {
        return torch.empty_like(made());
    }

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
    public void setRows(Tensor state, Tensor rows) {
        // they are the state's own
    }

    /** Returns the gradient as {@link WeightUpdate}s of DJL see it, in memory that is reused. */
    final Tensor whole(WeightUpdate.Settings settings) {
        Tensor gradient = gradient(settings.rescale());
        if (settings.isClipped()) {
            gradient.clamp_max_(new Scalar(settings.clip())); // from above only, as DJL does
        }
        return gradient;
    }
}
