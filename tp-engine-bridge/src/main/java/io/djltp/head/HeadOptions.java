package io.djltp.head;

/**
 * What the logits of a {@link FusedCrossEntropy} are, and of which classes.
 *
 * @param sampleShare the share of all classes that is drawn for a training step, which computes
 *     with them and with the labels of the batch. Above 0, and up to 1, all classes
 * @param sampleSeed the seed by which classes are drawn: it, the step and the class decide, and not
 *     the number of ranks
 * @param margin the margin of a softmax over cosines, or {@code null} for a linear layer's logits
 */
public record HeadOptions(float sampleShare, long sampleSeed, Margin margin) {

    /** A full softmax over the logits of a linear layer. */
    public static final HeadOptions DEFAULT = new HeadOptions(1, 0, null);

    /**
     * Creates options.
     *
     * @param sampleShare above 0 and up to 1
     * @param sampleSeed the seed
     * @param margin the margin, or {@code null}
     * @throws IllegalArgumentException if the share is out of its range
     */
    public HeadOptions {
        if (!(sampleShare > 0 && sampleShare <= 1)) {
            throw new IllegalArgumentException(
                    "The sample share must be above 0 and up to 1, not " + sampleShare);
        }
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
