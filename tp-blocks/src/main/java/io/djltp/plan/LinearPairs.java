package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.transformer.PointwiseFeedForwardBlock;

import io.djltp.nn.ParallelDropout;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/**
 * Finds linear layers that follow each other in a sequence with nothing but elementwise operations
 * between: the output features of the first and the input features of the second are cut alike, and
 * one all-reduce does for both.
 */
final class LinearPairs {

    private final int ranks;

    /**
     * Creates a search.
     *
     * @param ranks the number of ranks: of layers with fewer features between none are cut
     */
    LinearPairs(int ranks) {
        this.ranks = ranks;
    }

    /**
     * Finds the pairs of a sequence.
     *
     * @param block a block
     * @return the style of the layers of each pair; none if the block is not DJL's own sequence
     */
    Map<Block, Style> in(Block block) {
        Map<Block, Style> styles = new IdentityHashMap<>();
        if (!isSequence(block)) {
            return styles;
        }
        List<Block> children = block.getChildren().values();
        Block first = null;
        for (Block child : children) {
            boolean linear =
                    LinearState.isPlain(child) && Collections.frequency(children, child) == 1;
            if (linear && first != null) {
                styles.put(first, Style.column());
                styles.put(child, Style.row());
                first = null;
            } else if (linear && LinearState.units(child) >= ranks) {
                first = child;
            } else if (first != null && !isElementwise(child, LinearState.units(first))) {
                first = null;
            }
        }
        return styles;
    }

    /**
     * Returns whether a block passes what each of its children returns to the next, and no more.
     */
    static boolean isSequence(Block block) {
        boolean known =
                block.getClass() == SequentialBlock.class
                        || block.getClass() == PointwiseFeedForwardBlock.class;
        return known && !((SequentialBlock) block).isReturnIntermediate();
    }

    /** Returns whether a block does the same to each feature, whichever else are there. */
    static boolean isElementwise(Block block, long features) {
        return block.getClass() == Dropout.class
                || block instanceof ParallelDropout
                || block.getClass() == LambdaBlock.class
                        && ElementwiseProbe.commutes((LambdaBlock) block, features);
    }
}
