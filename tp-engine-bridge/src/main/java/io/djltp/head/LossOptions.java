package io.djltp.head;

/**
 * What a softmax cross entropy computes beside the mean of {@code -log(softmax(logits)[label])}.
 *
 * @param ignoreIndex the label of rows that do not count
 * @param labelSmoothing the part of a row's weight that all classes share, the label's included, as
 *     in PyTorch: from 0, none, to 1
 * @param zLoss the weight of the z-loss, the square of the log-sum-exp of the logits, in the loss
 *     of a row; 0 adds nothing
 */
public record LossOptions(long ignoreIndex, float labelSmoothing, float zLoss) {

    /** The label of rows that do not count when nothing else is said, as in PyTorch. */
    public static final long DEFAULT_IGNORE_INDEX = -100;

    /** The plain cross entropy. */
    public static final LossOptions DEFAULT = new LossOptions(DEFAULT_IGNORE_INDEX, 0, 0);

    /**
     * Creates options.
     *
     * @param ignoreIndex the label of rows that do not count
     * @param labelSmoothing from 0 to 1
     * @param zLoss 0 or more
     * @throws IllegalArgumentException if a value is out of its range
     */
    public LossOptions {
        if (!(labelSmoothing >= 0 && labelSmoothing <= 1)) {
            throw new IllegalArgumentException(
                    "The label smoothing must be from 0 to 1, not " + labelSmoothing);
        }
        if (!(zLoss >= 0 && zLoss < Float.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException(
                    "The weight of the z-loss must be 0 or more, not " + zLoss);
        }
    }
}
