package io.djltp.nn;

import ai.djl.util.Preconditions;

import io.djltp.head.HeadOptions;

/** Which options of a {@link ClassificationHead} do not go together. */
final class HeadChecks {

    private HeadChecks() {}

    static void check(
            HeadOptions options, long units, boolean fusedLoss, boolean biased, boolean tied) {
        boolean plain = !options.isSampled() && options.margin() == null;
        Preconditions.checkArgument(
                fusedLoss || plain, "optSampleShare and optMargin exclude optFusedLoss(false)");
        Preconditions.checkArgument(
                options.margin() == null || !biased,
                "A cosine has no bias: set optBias(false) with optMargin");
        Preconditions.checkArgument(
                !tied || plain,
                "A head with optTiedWeight has the rows of the embedding as they are, and all"
                        + " of them in each step: optSampleShare and optMargin exclude it");
        options.checkClasses(units);
    }
}
