package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.ClassificationHead;

/** A {@code Linear} layer that becomes a {@link ClassificationHead}. */
final class HeadStyle extends LinearStyle {

    HeadStyle() {
        super(ClassificationHead.class);
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        return LinearState.move(
                block,
                ClassificationHead.builder()
                        .setUnits(LinearState.units(block))
                        .optBias(LinearState.hasBias(block))
                        .optBatchShardedInput(true) // where MIXED mode cuts the body by rows
                        .build());
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "head()";
    }
}
