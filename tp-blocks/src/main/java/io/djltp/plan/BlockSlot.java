package io.djltp.plan;

import ai.djl.nn.Block;

/** A place in a network that refers to a block: a child, a field, an element of a collection. */
interface BlockSlot {

    /**
     * Checks, without changing anything, that another block can be put there.
     *
     * @param type the class of the other block
     * @param path the path of the block, for the message
     * @throws IllegalArgumentException if it cannot
     */
    void check(Class<? extends Block> type, String path);

    /** Puts another block there. */
    void set(Block replacement);

    /**
     * Returns the error that another block cannot be put somewhere, with the reason and a remedy.
     */
    static IllegalArgumentException refusal(Class<? extends Block> type, String path, String why) {
        return new IllegalArgumentException(
                "The block " + path + " cannot become a " + type.getSimpleName() + ": " + why);
    }

    /** A place that may only be read, where nothing else can be put. */
    record Unreachable(String where, String why) implements BlockSlot {

        /** {@inheritDoc} */
        @Override
        public void check(Class<? extends Block> type, String path) {
            throw refusal(type, path, "it is held by " + where + ", " + why);
        }

        /** {@inheritDoc} */
        @Override
        public void set(Block replacement) {
            throw new IllegalStateException("It is held by " + where);
        }
    }
}
