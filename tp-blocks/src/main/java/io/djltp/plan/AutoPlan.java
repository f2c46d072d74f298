package io.djltp.plan;

import ai.djl.nn.Block;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Gives styles to DJL's own blocks of which it is known that the ranks compute what one would, and
 * leaves the others as they are.
 */
final class AutoPlan {

    private static final Logger logger = LoggerFactory.getLogger(AutoPlan.class);
    private static final long LARGE = 1024; // outputs, from which a layer alone is worth a gather

    private final BlockTree tree;
    private final StyleAssignment assignment;
    private final int ranks;
    private final Set<BlockNode> taken = new HashSet<>();

    AutoPlan(BlockTree tree, StyleAssignment assignment, int ranks) {
        this.tree = tree;
        this.assignment = assignment;
        this.ranks = ranks;
    }

    /** Gives styles to what has none. */
    void run() {
        assignment
                .getStyles()
                .forEach(
                        (node, style) -> {
                            taken.add(node);
                            if (style.isWhole()) {
                                taken.addAll(StyleAssignment.below(node));
                            }
                        });
        for (BlockNode node : tree.nodes()) {
            composite(node);
        }
        for (BlockNode node : tree.nodes()) {
            new LinearPairs(ranks).in(node.block()).forEach(this::pair);
        }
        for (BlockNode node : tree.nodes()) {
            single(node);
        }
    }

    private void composite(BlockNode node) {
        List<Style> styles = List.of(Style.bert(), Style.encoder(), Style.attention());
        for (Style style : styles) {
            boolean free = StyleAssignment.below(node).stream().noneMatch(taken::contains);
            if (style.isFor(node.block()) && free && heads(node.block()) >= ranks) {
                give(node, style);
            }
        }
    }

    private static int heads(Block block) {
        if (new AttentionStyle().isFor(block)) {
            return AttentionStyle.heads(block);
        }
        return new EncoderStyle(null).isFor(block)
                ? EncoderStyle.heads(block)
                : BertStyle.encoders(block).stream().mapToInt(EncoderStyle::heads).min().orElse(0);
    }

    private void pair(Block block, Style style) {
        BlockNode node = tree.nodeOf(block);
        boolean alone = node.slots().size() == 1; // else it is used elsewhere, too
        if (alone) {
            give(node, style);
        }
    }

    private void single(BlockNode node) {
        Block block = node.block();
        if (Style.dropout().isFor(block) && DropoutStyle.rateOf(block) > 0) {
            give(node, Style.dropout());
        } else if (Style.batchNorm().isFor(block)) {
            give(node, Style.batchNorm());
        } else if (Style.vocabulary().isFor(block) && EmbeddingStyle.words(block) >= ranks) {
            give(node, Style.vocabulary());
        } else if (LinearState.isPlain(block)
                && LinearState.units(block) >= Math.max(LARGE, ranks)) {
            give(node, Style.column().gatherOutput());
        }
    }

    /** Gives a block a style if it can be replaced where it is. */
    private void give(BlockNode node, Style style) {
        if (taken.contains(node)) {
            return;
        }
        try {
            assignment.put(node, style);
        } catch (IllegalArgumentException e) {
            logger.warn("{} stays as it is: {}", node, e.getMessage());
            return;
        }
        taken.add(node);
        if (style.isWhole()) {
            taken.addAll(StyleAssignment.below(node));
        }
    }
}
