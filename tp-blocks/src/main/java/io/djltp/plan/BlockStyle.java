package io.djltp.plan;

import ai.djl.nn.Block;

import org.jspecify.annotations.Nullable;

import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/** What a plan does with a style. */
non-sealed class BlockStyle implements Style {
    private final String name;
    private final String wanted;
    private final @Nullable Class<? extends Block> type; // or null: the class of the block
    private final Predicate<Block> isFor;
    private final UnaryOperator<Block> parallel;

    /**
     * Creates a style.
     *
     * @param name how a plan is written with it, for messages
     * @param wanted what the style is for, for messages
     * @param type the class that a block becomes, or {@code null} if it stays as it is
     * @param isFor whether a block can have the style
     * @param parallel makes the parallel block with the parameters of a block
     */
    BlockStyle(
            String name,
            String wanted,
            @Nullable Class<? extends Block> type,
            Predicate<Block> isFor,
            UnaryOperator<Block> parallel) {
        this.name = name;
        this.wanted = wanted;
        this.type = type;
        this.isFor = isFor;
        this.parallel = parallel;
    }

    /** Returns whether a block can have the style. */
    final boolean isFor(Block block) {
        return isFor.test(block);
    }

    /** Returns what the style is for, for messages. */
    final String wanted() {
        return wanted;
    }

    /** Returns the class that the block becomes. */
    final Class<? extends Block> typeOf(Block block) {
        return type == null ? block.getClass() : type;
    }

    /** Returns the parallel block with the parameters of this one. */
    final Block parallel(Block block) {
        return parallel.apply(block);
    }

    /** Returns whether the style is one of all blocks below the block, too. */
    final boolean isWhole() {
        return Styles.WHOLE.contains(this);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return name;
    }

    static String option(boolean isSet, String text) {
        return isSet ? "." + text : "";
    }
}
