package io.djltp.plan;

import ai.djl.nn.Block;

import io.djltp.plan.BlockTree.Node;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** The style of each block of a network: by the patterns of a plan, or by its class. */
final class StyleAssignment {

    private static final Logger logger = LoggerFactory.getLogger(StyleAssignment.class);
    private static final long LARGE = 1024; // outputs, from which a layer alone is worth a gather
    private static final int MOST_PATHS = 60; // in a message

    private final BlockTree tree;
    private final Map<Node, Style> styles = new LinkedHashMap<>();
    private final Map<Node, PathPattern> takenBy = new HashMap<>();

    StyleAssignment(BlockTree tree) {
        this.tree = tree;
    }

    /** Returns the style of each block that has one. */
    Map<Node, Style> getStyles() {
        return styles;
    }

    /**
     * Gives the blocks a style that a pattern takes.
     *
     * @throws IllegalArgumentException if it takes none, or one that another pattern has taken
     */
    void add(PathPattern pattern, Style style) {
        Set<Node> matched = new LinkedHashSet<>();
        match(tree.root(), pattern.start(), pattern, matched, new HashMap<>());
        List<Node> taken = matched.stream().filter(node -> style.isFor(node.block())).toList();
        if (matched.isEmpty()) {
            throw new IllegalArgumentException(
                    "The pattern \"" + pattern + "\" matches no block. The blocks are: " + paths());
        }
        if (taken.isEmpty()) {
            throw new IllegalArgumentException(
                    "The pattern \""
                            + pattern
                            + "\" matches no block that "
                            + style
                            + " is for, which is "
                            + style.wanted()
                            + ", but "
                            + list(matched.stream().map(Node::toString).toList()));
        }
        for (Node node : taken) {
            PathPattern other = takenBy.putIfAbsent(node, pattern);
            if (other != null) {
                throw twice(node, other, node, pattern);
            }
            put(node, style);
        }
        checkNested();
    }

    /** Gives a block a style, after a check that it can be put where the block is. */
    private void put(Node node, Style style) {
        Class<?> before = node.block().getClass();
        if (style.typeOf(node.block()) != before) {
            node.check(style.typeOf(node.block()));
        }
        styles.put(node, style);
    }

    private void match(
            Node node,
            BitSet state,
            PathPattern pattern,
            Set<Node> matched,
            Map<Node, Set<BitSet>> seen) {
        if (state.isEmpty() || !seen.computeIfAbsent(node, key -> new HashSet<>()).add(state)) {
            return;
        }
        if (pattern.isMatched(state)) {
            matched.add(node);
        }
        node.below()
                .forEach(
                        (child, names) -> {
                            BitSet next = new BitSet();
                            names.forEach(name -> next.or(pattern.after(state, name)));
                            match(child, next, pattern, matched, seen);
                        });
    }

    /** A style of a whole block is one of all blocks below it. */
    private void checkNested() {
        styles.forEach(
                (node, style) -> {
                    if (style.isWhole()) {
                        for (Node inner : node.allBelow()) {
                            if (styles.containsKey(inner)) {
                                throw twice(node, takenBy.get(node), inner, takenBy.get(inner));
                            }
                        }
                    }
                });
    }

    /**
     * Gives a style to DJL's own blocks that have none, if it is known that the ranks then compute
     * what one would, and leaves the others as they are.
     *
     * @param ranks the number of ranks; each gets a part of every block that is cut
     */
    void addAuto(int ranks) {
        Set<Node> taken = new HashSet<>();
        styles.forEach((node, style) -> take(taken, node, style));
        for (Node node : tree.nodes()) {
            for (Style style : List.of(Style.bert(), Style.encoder(), Style.attention())) {
                boolean free = node.allBelow().stream().noneMatch(taken::contains);
                if (style.isFor(node.block()) && free && Styles.heads(node.block()) >= ranks) {
                    give(taken, node, style);
                }
            }
        }
        for (Node sequence : tree.nodes()) {
            new LinearPairs(ranks)
                    .in(sequence.block())
                    .forEach(
                            (block, style) -> {
                                Node node = tree.nodeOf(block);
                                if (node.isHeldOnce()) { // else it is used elsewhere, too
                                    give(taken, node, style);
                                }
                            });
        }
        for (Node node : tree.nodes()) {
            Style style = singleStyle(node.block(), ranks);
            if (style != null) {
                give(taken, node, style);
            }
        }
    }

    /** Returns the style of a block whatever is before and behind it, or null. */
    private static Style singleStyle(Block block, int ranks) {
        if (Style.dropout().isFor(block) && Styles.rateOf(block) > 0) {
            return Style.dropout();
        } else if (Style.batchNorm().isFor(block)) {
            return Style.batchNorm();
        } else if (Style.vocabulary().isFor(block) && Styles.words(block) >= ranks) {
            return Style.vocabulary();
        } else if (Styles.isLinear(block) && Styles.units(block) >= Math.max(LARGE, ranks)) {
            return Style.column().gatherOutput();
        }
        return null;
    }

    /** Gives a block a style if no other has it and it can be replaced where it is. */
    private void give(Set<Node> taken, Node node, Style style) {
        if (taken.contains(node)) {
            return;
        }
        try {
            put(node, style);
            take(taken, node, style);
        } catch (IllegalArgumentException e) {
            logger.warn("{} stays as it is: {}", node, e.getMessage());
        }
    }

    private static void take(Set<Node> taken, Node node, Style style) {
        taken.add(node);
        if (style.isWhole()) {
            taken.addAll(node.allBelow());
        }
    }

    private IllegalArgumentException twice(
            Node node, PathPattern pattern, Node inner, PathPattern other) {
        return new IllegalArgumentException(
                "The plan cuts "
                        + inner
                        + " twice: by the pattern \""
                        + pattern
                        + "\""
                        + (node == inner ? "" : ", which takes all of " + node + ",")
                        + " and by \""
                        + other
                        + "\". Let one pattern take it");
    }

    private String paths() {
        return list(tree.nodes().stream().map(Node::path).filter(path -> !path.isEmpty()).toList());
    }

    private static String list(List<String> names) {
        String text = names.stream().limit(MOST_PATHS).collect(Collectors.joining(", "));
        int more = names.size() - MOST_PATHS;
        return more > 0 ? text + " and " + more + " more" : text;
    }
}
