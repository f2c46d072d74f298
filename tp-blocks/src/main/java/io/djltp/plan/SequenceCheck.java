package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.SyncBatchNorm;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Checks what is known before a step of the styles of blocks that follow each other in a sequence:
 * whether a slice comes to a layer that needs the whole, or the whole to one that needs a slice.
 * The analysis of the first step finds the rest.
 */
final class SequenceCheck {

    private static final long PROBED = 8; // features, to try a function with

    private final Map<Block, Style> styles = new IdentityHashMap<>();

    /** What a block of a sequence leaves to the next one. */
    private enum Output {
        UNKNOWN,
        WHOLE,
        SLICE
    }

    SequenceCheck(Map<BlockTree.Node, Style> styles) {
        styles.forEach((node, style) -> this.styles.put(node.block(), style));
    }

    /**
     * Checks all sequences of a network.
     *
     * @throws IllegalArgumentException if two blocks do not fit each other
     */
    void check(BlockTree tree) {
        for (BlockTree.Node node : tree.nodes()) {
            if (LinearPairs.isSequence(node.block())) {
                check(node, tree);
            }
        }
    }

    private void check(BlockTree.Node sequence, BlockTree tree) {
        Output output = Output.UNKNOWN;
        BlockTree.Node from = null;
        for (Block block : sequence.block().getChildren().values()) {
            BlockTree.Node node = tree.nodeOf(block);
            Style style = styles.get(block);
            if (output == Output.SLICE && needsWhole(block, style)) {
                throw new IllegalArgumentException(
                        "The plan leaves each rank a slice of the output of "
                                + from
                                + ", and "
                                + node
                                + ", which gets it, needs the whole: give that one the style row(),"
                                + " or the first column().gatherOutput()");
            }
            if (output == Output.WHOLE && takesSlice(style)) {
                throw new IllegalArgumentException(
                        "The plan gives "
                                + node
                                + " the style row(), which takes a slice of the features, and gets"
                                + " the whole output of "
                                + from
                                + ": give that one the style column(), or this one"
                                + " row().scatterInput()");
            }
            Output next = outputOf(block, style, output);
            from = next == output && !isLayer(block) ? from : node;
            output = next;
        }
    }

    private static boolean takesSlice(Style style) {
        return style instanceof RowStyle && ((RowStyle) style).takesSlice();
    }

    private static boolean needsWhole(Block block, Style style) {
        return isLayer(block) && !takesSlice(style);
    }

    /** Returns whether a block is one of DJL's that combine all features, or know their number. */
    private static boolean isLayer(Block block) {
        return Styles.isLinear(block)
                || block instanceof BatchNorm
                || block instanceof SyncBatchNorm
                || block instanceof LayerNorm
                || Styles.ATTENTION.isFor(block)
                || Styles.ENCODER.isFor(block);
    }

    private static Output outputOf(Block block, Style style, Output input) {
        if (style instanceof ColumnStyle) {
            return ((ColumnStyle) style).leavesSlice() ? Output.SLICE : Output.WHOLE;
        }
        if (isLayer(block)) {
            return style == Styles.HEAD ? Output.UNKNOWN : Output.WHOLE;
        }
        if (input == Output.WHOLE && block instanceof LambdaBlock) {
            return Output.WHOLE; // a function has the whole, whatever it does
        }
        return LinearPairs.isElementwise(block, PROBED) ? input : Output.UNKNOWN;
    }
}
