package io.djltp.plan;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** The blocks of a network that the patterns of a plan take, each once. */
final class StyleAssignment {

    private static final int MOST_PATHS = 60; // in a message

    private final BlockTree tree;
    private final Map<BlockNode, Style> styles = new LinkedHashMap<>();
    private final Map<BlockNode, PathPattern> takenBy = new HashMap<>();

    StyleAssignment(BlockTree tree) {
        this.tree = tree;
    }

    /** Returns the style of each block that has one. */
    Map<BlockNode, Style> getStyles() {
        return styles;
    }

    /**
     * Gives the blocks a style that a pattern takes.
     *
     * @throws IllegalArgumentException if it takes none, or one that another pattern has taken
     */
    void add(PathPattern pattern, Style style) {
        Set<BlockNode> matched = new LinkedHashSet<>();
        match(tree.root(), pattern.start(), pattern, matched, new HashMap<>());
        List<BlockNode> taken = matched.stream().filter(node -> style.isFor(node.block())).toList();
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
                            + list(matched.stream().map(BlockNode::toString).toList()));
        }
        for (BlockNode node : taken) {
            PathPattern other = takenBy.putIfAbsent(node, pattern);
            if (other != null) {
                throw twice(node, other, node, pattern);
            }
            put(node, style);
        }
        checkNested();
    }

    /** Gives a block a style, after a check that it can be put where the block is. */
    void put(BlockNode node, Style style) {
        Class<?> before = node.block().getClass();
        if (style.typeOf(node.block()) != before) {
            node.slots().forEach(slot -> slot.check(style.typeOf(node.block()), node.path()));
        }
        styles.put(node, style);
    }

    private void match(
            BlockNode node,
            BitSet state,
            PathPattern pattern,
            Set<BlockNode> matched,
            Map<BlockNode, Set<BitSet>> seen) {
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
                        for (BlockNode inner : below(node)) {
                            if (styles.containsKey(inner)) {
                                throw twice(node, takenBy.get(node), inner, takenBy.get(inner));
                            }
                        }
                    }
                });
    }

    /** Returns the blocks below a block. */
    static Set<BlockNode> below(BlockNode node) {
        Set<BlockNode> all = new LinkedHashSet<>();
        List<BlockNode> open = new ArrayList<>(node.below().keySet());
        while (!open.isEmpty()) {
            BlockNode next = open.remove(open.size() - 1);
            if (next != node && all.add(next)) {
                open.addAll(next.below().keySet());
            }
        }
        return all;
    }

    private IllegalArgumentException twice(
            BlockNode node, PathPattern pattern, BlockNode inner, PathPattern other) {
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
        return list(
                tree.nodes().stream()
                        .map(BlockNode::path)
                        .filter(path -> !path.isEmpty())
                        .toList());
    }

    private static String list(List<String> names) {
        String text = names.stream().limit(MOST_PATHS).collect(Collectors.joining(", "));
        int more = names.size() - MOST_PATHS;
        return more > 0 ? text + " and " + more + " more" : text;
    }
}
