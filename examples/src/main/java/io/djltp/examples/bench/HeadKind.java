package io.djltp.examples.bench;

import io.djltp.nn.ColumnParallelLinear;

/** The ways in which this library computes a large last layer. */
enum HeadKind {
    /** Logits in chunks, loss and update in one. */
    FUSED,
    /** All logits, then the loss, then the update. */
    FULL;

    /**
     * Creates the head.
     *
     * @param classes the number of classes
     * @param biased whether it has a bias
     * @param batchSharded whether it follows a data-parallel body
     * @return the layer, from (batch, features) to (batch, classes)
     */
    ColumnParallelLinear create(int classes, boolean biased, boolean batchSharded) {
        return ColumnParallelLinear.builder()
                .setUnits(classes)
                .optBias(biased)
                .optBatchShardedInput(batchSharded)
                .optFusedLoss(this == FUSED)
                .build();
    }
}
