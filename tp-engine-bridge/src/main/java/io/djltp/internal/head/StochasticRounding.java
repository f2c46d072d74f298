package io.djltp.internal.head;

import io.djltp.internal.torch.DropoutMask;
import io.djltp.internal.torch.HostReads;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.function.LongUnaryOperator;

/**
 * Rounds the weights of a step to 16 bits, up or down at random, so that the mean of many roundings
 * is the number: an update by less than half of the distance to the next number in 16 bits is made
 * now and then, where rounding to the nearest never makes it. (Gupta et al., 2015, "Deep Learning
 * with Limited Numerical Precision", <a
 * href="https://arxiv.org/abs/1502.02551">arXiv:1502.02551</a>.)
 *
 * <p>The random number of an element follows from a key of the step, its class and its feature: it
 * is the product of an odd number of the class and one of the feature, modulo 2^16, both by
 * SplitMix64. So it is the same on any number of ranks. Each element's is uniform, and those of two
 * elements are independent.
 *
 * <p>A number that 16 bits hold stays. The probability to round up is exact to 2^-16 in bfloat16,
 * and to 2^-12 in float16.
 */
final class StochasticRounding {

    private static final int EXPONENT = 0x7f800000; // of the bits of a float32
    private static final int UPPER_HALF = 0xffff0000;

    /** The smallest normal number of float16, below which numbers have the same distances. */
    private static final float LEAST_HALF = 0x1p-14f;

    /** Added to a number below 2, this leaves the digits that float16 has. */
    private static final float HALF_DIGITS = 0x1.8p13f;

    /** Of a random number: less than half of a distance at most, with the digits of float32. */
    private static final double OF_HALF = 0x1p-26 * (1 - 0x1p-12);

    private final long key;
    private final LongUnaryOperator classOf;
    private final Tensor ofFeatures; // int16 [features]
    private final boolean isHalf;

    /**
     * Draws for the features.
     *
     * @param key the key of the step
     * @param classOf returns the class at a position
     * @param weight the weight, [classes of the rank, features], in 16 bits
     */
    StochasticRounding(long key, LongUnaryOperator classOf, Tensor weight) {
        this.key = key;
        this.classOf = classOf;
        isHalf = weight.scalar_type().intern() == ScalarType.Half;
        // features are counted from below zero, classes from zero
        ofFeatures = draw(feature -> -1 - feature, 0, weight.size(1), weight.options());
    }

    /** Returns whether weights of a type are rounded. */
    static boolean isFor(Tensor weight) {
        ScalarType type = weight.scalar_type().intern();
        return type == ScalarType.Half || type == ScalarType.BFloat16;
    }

    private Tensor draw(LongUnaryOperator counter, long start, long length, TensorOptions like) {
        short[] numbers = new short[(int) length];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (short) (DropoutMask.key(key, counter.applyAsLong(start + i)) | 1);
        }
        return HostReads.toDevice(like.device(), numbers);
    }

    /**
     * Moves numbers so that rounding them to the nearest rounds what they were at random.
     *
     * @param start the position of the first row
     * @param rows the rows, float32 [length, features], contiguous
     */
    void apply(long start, Tensor rows) {
        Tensor ofRows = draw(classOf, start, rows.size(0), rows.options());
        Tensor random = ofRows.unsqueeze(1).mul(ofFeatures); // odd, from -32,767 to 32,767
        Tensor bits = rows.view(ScalarType.Int);
        if (isHalf) {
            Tensor powers = bits.__and__(new Scalar(EXPONENT)).view(ScalarType.Float);
            powers.clamp_min_(new Scalar(LEAST_HALF));
            rows.div_(powers).add_(random, new Scalar(OF_HALF));
            rows.add_(new Scalar(HALF_DIGITS)).sub_(new Scalar(HALF_DIGITS)).mul_(powers);
        } else {
            bits.add_(random).add_(new Scalar(1 << 15)).__iand__(new Scalar(UPPER_HALF));
        }
    }
}
