package io.djltp.head;

import io.djltp.torch.HostReads;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;

/**
 * The powers of two that the factors of a pass in float16 are multiplied with, and its sums in
 * float32 divided by. Numbers of float16 have all of their 11 bits from 2^-14 to 2^16, and smaller
 * ones are off by 2^-25 at most. Brought up to 2^15 at most, factors have all bits down to 2^-29 of
 * their bound, and what is smaller is off by 2^-40 of it: a part of 10^12. To multiply with a power
 * of two rounds nothing.
 *
 * <ul>
 *   <li>Exponentials are at most one: the largest logit of a row is subtracted, not that of its
 *       label, which is in no product
 *   <li>the bounds of the features, and of their factors in the gradient, are read from the device.
 *       Those factors have the share of a row in the batch, and the scale of the loss, in them: no
 *       gradient is lost for being small, and the bits are the same with any power of two as a
 *       scale
 *   <li>weights are not looked through before they are used: theirs is a constant
 * </ul>
 */
final class Float16Scales {

    /** Of exponentials. */
    static final float EXPONENTIALS = 0x1p15f;

    /** Of weights: the largest is 1,023, and below 10^-6 they are off by 2^-31. */
    static final float WEIGHTS = 0x1p6f;

    private static final int TOP = 14; // the exponent of what is below 2^15

    /**
     * Two of them, taken out at once, leave a float32 what it needs: 2^-90 times a learning rate.
     */
    private static final int MOST = 45;

    private double largest; // of the features
    private float ofFeatures = 1;
    private float ofProducts = 1;
    private float ofGradients = 1;

    /** Reads the bound of features. */
    void setFeatures(Tensor features) {
        largest = HostReads.number(bound(features));
        ofFeatures = upTo(largest);
    }

    /**
     * Reads the bounds of the gradient.
     *
     * @param pass the pass, whose factors are set
     * @param scale the factor of the loss in the backward pass
     */
    void setGradients(FusedPass pass, float scale) {
        if (pass.rows == 0) {
            return;
        }
        if (!pass.isSmooth()) {
            ofProducts = upTo(largest * HostReads.number(bound(pass.softmaxFactor())));
            return;
        }
        Tensor sum = bound(pass.softmaxFactor()).add_(bound(pass.smoothedPart()));
        if (pass.labels.rows.length > 0) {
            Tensor parts = pass.labelParts().narrow(0, 0, pass.labels.rows.length);
            sum.add_(bound(parts), new Scalar(Math.abs(scale)));
        }
        ofGradients = upTo(HostReads.number(sum));
    }

    private static Tensor bound(Tensor numbers) {
        return numbers.abs().max();
    }

    /** Returns the power of two that brings numbers up to a bound to below 2^15. */
    static float upTo(double bound) {
        int exponent = TOP - Math.getExponent((float) bound);
        return Math.scalb(1f, Math.min(MOST, exponent));
    }

    /** Returns that of features. */
    float features() {
        return ofFeatures;
    }

    /** Returns that of features times their factors of the softmax. */
    float products() {
        return ofProducts;
    }

    /** Returns that of the gradient of the logits, with label smoothing. */
    float gradients() {
        return ofGradients;
    }
}
