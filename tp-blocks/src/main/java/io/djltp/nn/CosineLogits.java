package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDManager;

import io.djltp.head.Margin;

/**
 * The output of a layer with a {@link Margin} where none is applied, outside of training: the
 * scaled cosine of the angle between the features and each row of the weight.
 *
 * <p>The output of the linear layer is divided by the lengths, not the weight: that would take a
 * copy of it.
 */
final class CosineLogits {

    private static final float ZERO = 1e-12f; // as PyTorch's normalize

    private CosineLogits() {}

    /**
     * Returns the features with the length that the margin scales cosines with.
     *
     * @param x the features, [x1, ..., xn, features]
     * @param margin the margin
     * @return the features, of one length
     */
    static NDArray features(NDArray x, Margin margin) {
        // arrays: a number would not live until the backward pass
        NDArray scale = x.getManager().create(margin.scale());
        return x.mul(scale).div(lengths(x, x.getManager()));
    }

    /**
     * Returns cosines from what a linear layer makes of such features.
     *
     * @param output the output, [x1, ..., xn, units]
     * @param weight the weight, [units, features]
     * @return the scaled cosines, in the shape of the output
     */
    static NDArray of(NDArray output, NDArray weight) {
        return output.div(lengths(weight, output.getManager()).flatten());
    }

    /** Returns the lengths of rows as an array of a manager: a weight's own lives too long. */
    private static NDArray lengths(NDArray rows, NDManager manager) {
        NDArray lengths = rows.norm(new int[] {rows.getShape().dimension() - 1}, true);
        lengths.attach(manager);
        return NDArrays.maximum(lengths, manager.create(ZERO));
    }
}
