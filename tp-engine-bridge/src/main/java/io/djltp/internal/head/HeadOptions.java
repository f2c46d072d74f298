package io.djltp.internal.head;

import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

/**
 * What the logits of a {@link ChunkedHead} are, and of which classes.
 *
 * @param sampleShare the share of all classes that is drawn for a training step, which computes
 *     with them and with the labels of the batch. Above 0, and up to 1, all classes
 * @param sampleSeed the seed by which classes are drawn, and weights in 16 bits rounded: it, the
 *     step and the class decide, and not the number of ranks
 * @param margin the margin of a softmax over cosines, or {@code null} for a linear layer's logits
 * @param precision the arithmetic of products in training: float32; on processors that have it,
 *     bfloat16; on GPUs, float16
 * @param isCorrected whether a softmax counts a drawn class that is no label as often as it stands
 *     for one that is not drawn
 * @param isInLoss whether the weight is updated with the loss, in one pass
 */
public record HeadOptions(
        float sampleShare,
        long sampleSeed,
        @Nullable Margin margin,
        Precision precision,
        boolean isCorrected,
        boolean isInLoss) {

    /**
     * The fewest classes that a step over a part of them draws: with one there are no negatives.
     */
    public static final int LEAST_CLASSES = 2;

    /** A full softmax over the logits of a linear layer. */
    public static final HeadOptions DEFAULT = new HeadOptions(1, 0, null, Precision.FLOAT32);

    /**
     * Creates options.
     *
     * @param sampleShare above 0 and up to 1
     * @param sampleSeed the seed
     * @param margin the margin, or {@code null}
     * @param precision the arithmetic
     * @param isCorrected whether a softmax corrects for how classes are drawn
     * @param isInLoss whether the weight is updated with the loss
     * @throws IllegalArgumentException if the share is out of its range, or the precision is TF32
     */
    public HeadOptions {
        Errors.check(
                precision != Precision.TF32,
                "A fused head cannot choose tf32 for itself: libtorch has one setting of it for the"
                        + " process, Float32Products.set. Use float32, bfloat16 or float16");
        Errors.check(
                sampleShare > 0 && sampleShare <= 1,
                "The sample share must be above 0 and up to 1, not %s",
                sampleShare);
    }

    /**
     * Creates options of a head whose softmax is not corrected and whose weight is updated by
     * steps.
     *
     * @param sampleShare above 0 and up to 1
     * @param sampleSeed the seed
     * @param margin the margin, or {@code null}
     * @param precision the arithmetic
     */
    public HeadOptions(
            float sampleShare, long sampleSeed, @Nullable Margin margin, Precision precision) {
        this(sampleShare, sampleSeed, margin, precision, false, false);
    }

    /**
     * Returns the same with another margin.
     *
     * @param other the margin, or {@code null}
     * @return the options
     */
    public HeadOptions with(@Nullable Margin other) {
        return new HeadOptions(sampleShare, sampleSeed, other, precision, isCorrected, isInLoss);
    }

    /**
     * Checks that the share of the classes leaves negatives.
     *
     * @param classes the number of all classes
     * @throws IllegalArgumentException if a step would draw fewer than {@link #LEAST_CLASSES}
     */
    public void checkClasses(long classes) {
        if (isSampled()) {
            ClassSampler.count(sampleShare, classes);
        }
    }

    /** Returns the bytes of an exponential that is kept, see {@link ChunkWorker}. */
    int keptBytes(LossOptions loss) {
        boolean rounded = precision != Precision.FLOAT32;
        return rounded && loss.labelSmoothing() == 0 ? Short.BYTES : Float.BYTES;
    }

    /**
     * Returns whether steps compute with a part of the classes.
     *
     * @return whether classes are drawn
     */
    public boolean isSampled() {
        return sampleShare < 1;
    }
}
