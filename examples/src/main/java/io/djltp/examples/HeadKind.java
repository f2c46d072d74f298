package io.djltp.examples;

import io.djltp.internal.head.HeadOptions;
import io.djltp.nn.ClassificationHead;

import java.util.Locale;

/** The ways in which this library computes a large last layer. */
public enum HeadKind {
    /** All logits, then the loss, then the update. */
    FULL,
    /** Logits in chunks, loss and update in one. */
    FUSED,
    /** The same with a random part of the classes in each step. */
    SAMPLED;

    private static final float SAMPLED_CLASSES = 6_000;
    private static final float LEAST_SHARE = 0.005f;
    private static final float LARGEST_SHARE = 0.1f;

    /**
     * Returns the share of the classes that a sampled head computes with if nothing else is said.
     *
     * @param classes the number of classes
     * @return the share
     */
    public static float defaultShare(int classes) {
        float share = Math.max(LEAST_SHARE, Math.min(LARGEST_SHARE, SAMPLED_CLASSES / classes));
        return Math.max(share, Math.min(1, (float) HeadOptions.LEAST_CLASSES / classes));
    }

    /**
     * Returns a builder of the head.
     *
     * @param classes the number of classes
     * @param share the share of the classes in a step of a sampled head
     * @param seed the seed by which they are drawn
     * @return the builder of a layer from (batch, features) to (batch, classes)
     */
    public ClassificationHead.Builder builder(int classes, float share, long seed) {
        ClassificationHead.Builder builder =
                ClassificationHead.builder().setUnits(classes).optFusedLoss(this != FULL);
        return this == SAMPLED ? builder.optSampleShare(share).optSampleSeed(seed) : builder;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
