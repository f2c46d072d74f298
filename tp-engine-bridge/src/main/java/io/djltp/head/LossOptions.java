package io.djltp.head;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.util.Objects;

/**
 * What a softmax cross entropy computes beside the mean of {@code -log(softmax(logits)[label])}. Of
 * a batch none of whose rows counts, the mean is 0, where PyTorch's is not a number: a batch of
 * padding then changes no weight.
 *
 * @param ignoreIndex the label of rows that do not count
 * @param labelSmoothing the part of a row's weight that all classes share, the label's included, as
 *     in PyTorch: from 0, none, to 1
 * @param zLoss the weight of the z-loss, the square of the log-sum-exp of the logits, in the loss
 *     of a row, which counts as much as the weight of its label; 0 adds nothing
 * @param focusing the focusing parameter \(\gamma\) of the focal loss, which multiplies the cross
 *     entropy \(-\log p\) of a row's label with \((1 - p)^\gamma\), so that rows that are known
 *     count less (Lin et al., 2017, <a
 *     href="https://arxiv.org/abs/1708.02002">arXiv:1708.02002</a>); of several labels, \(-\log p\)
 *     is the mean of theirs. 0 is the cross entropy
 * @param classWeights the weights of the classes, as in PyTorch: what a row counts for is the
 *     weight of its label, and a mean is over the weights. {@code null} for the same weight of all
 * @param reduction what becomes of the losses of the rows
 */
public record LossOptions(
        long ignoreIndex,
        float labelSmoothing,
        float zLoss,
        float focusing,
        float @Nullable [] classWeights,
        Reduction reduction) {

    /** The label of rows that do not count when nothing else is said, as in PyTorch. */
    public static final long DEFAULT_IGNORE_INDEX = -100;

    /** The plain cross entropy. */
    public static final LossOptions DEFAULT = new LossOptions(DEFAULT_IGNORE_INDEX, 0, 0);

    /**
     * Creates options of a mean over classes of the same weight.
     *
     * @param ignoreIndex the label of rows that do not count
     * @param labelSmoothing from 0 to 1
     * @param zLoss 0 or more
     */
    public LossOptions(long ignoreIndex, float labelSmoothing, float zLoss) {
        this(ignoreIndex, labelSmoothing, zLoss, null, Reduction.MEAN);
    }

    /**
     * Creates options without focusing.
     *
     * @param ignoreIndex the label of rows that do not count
     * @param labelSmoothing from 0 to 1
     * @param zLoss 0 or more
     * @param classWeights the weights of all classes, 0 or more, or {@code null}
     * @param reduction what becomes of the losses of the rows
     */
    public LossOptions(
            long ignoreIndex,
            float labelSmoothing,
            float zLoss,
            float @Nullable [] classWeights,
            Reduction reduction) {
        this(ignoreIndex, labelSmoothing, zLoss, 0, classWeights, reduction);
    }

    /**
     * Creates options.
     *
     * @param ignoreIndex the label of rows that do not count
     * @param labelSmoothing from 0 to 1
     * @param zLoss 0 or more
     * @param focusing 0 or more
     * @param classWeights the weights of all classes, 0 or more, or {@code null}
     * @param reduction what becomes of the losses of the rows
     * @throws IllegalArgumentException if a value is out of its range
     */
    public LossOptions {
        Errors.check(
                labelSmoothing >= 0 && labelSmoothing <= 1,
                "The label smoothing must be from 0 to 1, not %s",
                labelSmoothing);
        if (!(zLoss >= 0 && zLoss < Float.POSITIVE_INFINITY)) {
            throw Errors.argument("The weight of the z-loss must be 0 or more, not %s", zLoss);
        }
        if (!(focusing >= 0 && focusing < Float.POSITIVE_INFINITY)) {
            throw Errors.argument("The focusing parameter must be 0 or more, not %s", focusing);
        }
        Objects.requireNonNull(reduction, "reduction");
        classWeights = classWeights == null ? null : classWeights.clone();
        for (int i = 0; classWeights != null && i < classWeights.length; i++) {
            if (!(classWeights[i] >= 0 && classWeights[i] < Float.POSITIVE_INFINITY)) {
                throw Errors.argument(
                        "The weight of class %s must be 0 or more, not %s", i, classWeights[i]);
            }
        }
    }

    /**
     * Returns the same with other weights of the classes.
     *
     * @param weights the weights of all classes
     * @return the options
     */
    public LossOptions withClassWeights(float... weights) {
        return new LossOptions(
                ignoreIndex,
                labelSmoothing,
                zLoss,
                focusing,
                Objects.requireNonNull(weights, "weights"),
                reduction);
    }

    /**
     * Returns the same as a focal loss.
     *
     * @param parameter the focusing parameter, 0 or more
     * @return the options
     */
    public LossOptions withFocusing(float parameter) {
        return new LossOptions(
                ignoreIndex, labelSmoothing, zLoss, parameter, classWeights, reduction);
    }

    /**
     * Returns the same with another reduction.
     *
     * @param other the reduction
     * @return the options
     */
    public LossOptions withReduction(Reduction other) {
        return new LossOptions(ignoreIndex, labelSmoothing, zLoss, focusing, classWeights, other);
    }

    /**
     * Returns what the label of a row makes it count for.
     *
     * @param label the label
     * @return the weight, 0 of a row that does not count
     * @throws IndexOutOfBoundsException if there are class weights, and none of this label
     */
    public double weightOf(long label) {
        if (label == ignoreIndex) {
            return 0;
        }
        return classWeights == null
                ? 1
                : classWeights[(int) Objects.checkIndex(label, (long) classWeights.length)];
    }
}
