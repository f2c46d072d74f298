package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.nn.transformer.BertBlock;

import io.djltp.internal.parameters.ParallelParameters;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;

/** Makes an existing network parallel, and plain again. */
public final class TensorParallel {

    private static final Logger logger = LoggerFactory.getLogger(TensorParallel.class);
    private static final int MOST_TOLD = 20; // blocks

    private TensorParallel() {}

    /**
     * Replaces blocks of a network by parallel ones, as a plan says.
     *
     * <p>The network is changed in place. The new blocks have the same {@code Parameter} objects
     * under the same names, with their values, initializers and whether they are frozen, whether
     * the network has values yet or not. The log tells at level INFO which blocks. Places are
     * children, fields, final ones too, and lists, arrays and maps in fields; a block that several
     * places hold is replaced once, in all. If it throws, nothing has been changed.
     *
     * @param block the network
     * @param plan the plan
     * @return the network: {@code block} itself, unless the plan replaces the root
     * @throws IllegalArgumentException if a pattern takes no block; if two take one; or if a block
     *     cannot be replaced where it is, with the field that cannot hold another
     * @throws IllegalStateException if a trainer has the network
     */
    public static Block parallelize(Block block, Plan plan) {
        ParallelParameters.checkFree(block);
        BlockTree tree = new BlockTree(block);
        Map<BlockTree.Node, BlockStyle> styles = plan.assign(tree);
        if (styles.isEmpty()) {
            logger.warn(
                    "The plan replaces no block of {}. Every rank holds all blocks that are not"
                            + " parallel already. Name blocks with Plan.builder().add(...)",
                    block.getClass().getSimpleName());
        }
        Block root = block;
        for (Map.Entry<BlockTree.Node, BlockStyle> styled : styles.entrySet()) {
            Block replaced = replace(styled.getKey(), styled.getValue()::parallel);
            plan.setPrecision(replaced);
            root = styled.getKey() == tree.root() ? replaced : root;
        }
        String done = describe(styles);
        if (!done.isEmpty()) {
            logger.info(done);
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

    /** Returns what a plan does, in a line however many blocks there are; empty if nothing. */
    static String describe(Map<BlockTree.Node, BlockStyle> styles) {
        List<String> all =
                styles.entrySet().stream()
                        .filter(each -> each.getValue() != Styles.REPLICATE)
                        .map(each -> each.getKey() + " by " + each.getValue())
                        .toList();
        String first = String.join(", ", all.subList(0, Math.min(MOST_TOLD, all.size())));
        return all.isEmpty()
                ? ""
                : "The plan replaces %d block(s): %s%s"
                        .formatted(all.size(), first, all.size() > MOST_TOLD ? ", ..." : "");
    }

    private static Block replace(BlockTree.Node node, UnaryOperator<Block> by) {
        Block replacement = by.apply(node.block());
        if (replacement != node.block()) {
            node.replace(replacement);
        }
        return replacement;
    }
}
