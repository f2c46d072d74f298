package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.nn.ClassificationHead;

/** A {@code Linear} layer that becomes a {@link ClassificationHead}. */
final class HeadStyle extends Style {

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return LinearState.isPlain(block);
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "DJL's Linear";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return ClassificationHead.class;
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        return LinearState.move(
                block,
                ClassificationHead.builder()
                        .setUnits(LinearState.units(block))
                        .optBias(LinearState.hasBias(block))
                        .build());
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "head()";
    }
}
