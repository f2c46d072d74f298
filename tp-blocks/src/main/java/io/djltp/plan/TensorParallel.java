package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.nn.transformer.BertBlock;

import io.djltp.nn.SyncBatchNorm;
import io.djltp.parameters.ParallelParameters;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.IdentityHashMap;
import java.util.Map;
import java.util.function.UnaryOperator;

/** Makes an existing network parallel, and plain again. */
public final class TensorParallel {

    private static final Logger logger = LoggerFactory.getLogger(TensorParallel.class);

    private TensorParallel() {}

    /**
     * Replaces blocks of a network by parallel ones, as a plan says.
     *
     * <p>The network is changed in place. The new blocks have the same {@code Parameter} objects
     * under the same names, with their values, initializers and whether they are frozen, whether
     * the network has values yet or not. Places are children, fields, final ones too, and lists,
     * arrays and maps in fields; a block that several places hold is replaced once, in all. When
     * the plan is refused, nothing has been changed.
     *
     * @param block the network
     * @param plan the plan
     * @return the network: {@code block} itself, unless the plan replaces the root
     * @throws IllegalArgumentException if a pattern takes no block; if two take one; if a block
     *     cannot be replaced where it is, with the field that cannot hold another; or if the styles
     *     of a sequence do not fit each other
     * @throws IllegalStateException if a trainer has the network
     */
    public static Block parallelize(Block block, Plan plan) {
        ParallelParameters.checkFree(block);
        BlockTree tree = new BlockTree(block);
        Map<BlockTree.Node, Style> styles = plan.assign(tree);
        new SequenceCheck(styles).check(tree);
        Block root = block;
        for (Map.Entry<BlockTree.Node, Style> styled : styles.entrySet()) {
            Block replaced = replace(styled.getKey(), styled.getValue()::parallel);
            plan.setPrecision(replaced);
            root = styled.getKey() == tree.root() ? replaced : root;
            logger.debug("{}: {}", styled.getKey(), styled.getValue());
        }
        return root;
    }

    /**
     * Replaces the parallel blocks that plans make of DJL's by DJL's again: {@code Linear}, {@code
     * Dropout}, {@code ScaledDotProductAttentionBlock} and {@code TransformerEncoderBlock}, with
     * the same {@code Parameter} objects. The network can then be used, and loaded, where this
     * library is not.
     *
     * <p>A {@code ClassificationHead} becomes a {@code Linear}, which knows nothing of a margin.
     *
     * @param block the network, which is changed in place
     * @return the network: {@code block} itself, unless it is a parallel block
     * @throws IllegalStateException if a trainer has the network
     */
    public static Block serialize(Block block) {
        ParallelParameters.checkFree(block);
        BlockTree tree = new BlockTree(block);
        Block root = block;
        for (BlockTree.Node node : tree.nodes()) {
            if (node.block() instanceof BertBlock) {
                Styles.restoreDropout(node.block());
            }
            Block replaced = replace(node, Styles::plainOf);
            root = node == tree.root() ? replaced : root;
        }
        return root;
    }

    private static Block replace(BlockTree.Node node, UnaryOperator<Block> by) {
        Block replacement = by.apply(node.block());
        if (replacement != node.block()) {
            node.replace(replacement);
        }
        return replacement;
    }

    /**
     * Checks what is known before a step of the styles of blocks that follow each other in a
     * sequence: whether a slice comes to a layer that needs the whole, or the whole to one that
     * needs a slice. The analysis of the first step finds the rest.
     */
    static final class SequenceCheck {

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

        /**
         * Returns whether a block is one of DJL's that combine all features, or know their number.
         */
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
}
