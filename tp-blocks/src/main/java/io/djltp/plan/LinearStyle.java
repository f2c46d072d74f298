package io.djltp.plan;

import ai.djl.nn.Block;

/** A style of DJL's own {@code Linear}. */
abstract class LinearStyle extends Style {

    private final Class<? extends Block> type;

    /**
     * Creates a style.
     *
     * @param type the class that the layer becomes
     */
    LinearStyle(Class<? extends Block> type) {
        this.type = type;
    }

    /** {@inheritDoc} */
    @Override
    final boolean isFor(Block block) {
        return LinearState.isPlain(block);
    }

    /** {@inheritDoc} */
    @Override
    final String wanted() {
        return "DJL's Linear";
    }

    /** {@inheritDoc} */
    @Override
    final Class<? extends Block> typeOf(Block block) {
        return type;
    }
}
