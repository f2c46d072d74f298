package io.djltp.plan;

import ai.djl.nn.Block;

/** A block that stays as it is, and all below it. */
final class ReplicateStyle extends Style {

    /** {@inheritDoc} */
    @Override
    boolean isFor(Block block) {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    String wanted() {
        return "any block";
    }

    /** {@inheritDoc} */
    @Override
    Class<? extends Block> typeOf(Block block) {
        return block.getClass();
    }

    /** {@inheritDoc} */
    @Override
    Block parallel(Block block) {
        return block;
    }

    /** {@inheritDoc} */
    @Override
    boolean isWhole() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "replicate()";
    }
}
