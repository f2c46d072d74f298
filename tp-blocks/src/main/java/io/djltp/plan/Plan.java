package io.djltp.plan;

import ai.djl.nn.Block;
import ai.djl.util.Preconditions;

import io.djltp.internal.torch.LinearProduct;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.plan.BlockTree.Node;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Which blocks of a network become parallel, and how: an ordered map from a pattern of names to a
 * {@link Style}.
 *
 * <pre>{@code
 * Plan plan = Plan.builder()
 *         .add("encoder.*.up", Style.column())
 *         .add("encoder.*.down", Style.row())
 *         .add("classifier", Style.column().gatherOutput())
 *         .build();
 * Block parallel = TensorParallel.parallelize(block, plan);
 * }</pre>
 *
 * <p>The path of a block is the names on the way to it, with dots between; the network itself has
 * an empty one. A block below another one has as its name
 *
 * <ul>
 *   <li>as a child: its key in DJL's tree, {@code 03Linear}, as in the names of parameters; the key
 *       without its number, {@code Linear}; or the name of its class
 *   <li>in a field: the name of the field, or of its class
 *   <li>in a list, an array or a map in a field: the name of the field, and in the next segment the
 *       index from 0 or the key, {@code layers.2}
 * </ul>
 *
 * <p>In a pattern, {@code *} stands for any characters of one segment, {@code ?} for one character,
 * {@code [0-3]}, {@code [ab]} and {@code [!0-3]} for one of some characters, and {@code **} as a
 * segment for any number of segments, none included. Of the blocks that a pattern matches, those
 * are taken that its style is for. A pattern that takes none is an error, and so is a block that
 * two patterns take.
 */
public final class Plan {

    private final Map<PathPattern, BlockStyle> styles;
    private final boolean auto;
    private final int ranks;
    private final Precision precision;

    private Plan(Builder builder) {
        precision = builder.precision;
        styles = Collections.unmodifiableMap(new LinkedHashMap<>(builder.styles));
        auto = builder.auto;
        ranks = builder.ranks;
    }

    /**
     * Returns the plan with one pattern.
     *
     * @param pattern the pattern
     * @param style what becomes of the blocks
     * @return the plan
     */
    public static Plan of(String pattern, Style style) {
        return builder().add(pattern, style).build();
    }

    /**
     * Returns the plan that makes all of DJL's own blocks parallel of which it is known that the
     * result is the same, see {@link Builder#optAuto}.
     *
     * @return the plan
     */
    public static Plan auto() {
        return builder().optAuto(true).build();
    }

    /**
     * Creates a builder to build a {@code Plan}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Returns the style of each block that has one, after all checks. */
    Map<BlockTree.Node, BlockStyle> assign(BlockTree tree) {
        StyleAssignment assignment = new StyleAssignment(tree);
        styles.forEach(assignment::add);
        if (auto) {
            assignment.addAuto(ranks);
        }
        return assignment.getStyles();
    }

    /** Lets the linear layers that a style has made compute in the precision of the plan. */
    void setPrecision(Block made) {
        if (made instanceof ColumnParallelLinear column) {
            column.setPrecision(precision);
        } else if (made instanceof RowParallelLinear row) {
            row.setPrecision(precision);
        }
        made.getChildren().values().forEach(this::setPrecision);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "Plan" + styles + (auto ? " and auto for " + ranks + " ranks" : "");
    }

    /** The builder to construct a {@link Plan}. */
    public static final class Builder {

        private final Map<PathPattern, BlockStyle> styles = new LinkedHashMap<>();
        private boolean auto;
        private int ranks = 2;
        private Precision precision = Precision.FLOAT32;

        private Builder() {}

        /**
         * Adds a pattern.
         *
         * @param pattern the pattern
         * @param style what becomes of the blocks
         * @return this builder
         * @throws IllegalArgumentException if it is not a pattern
         */
        public Builder add(String pattern, Style style) {
            styles.put(new PathPattern(pattern), (BlockStyle) style);
            return this;
        }

        /**
         * Sets whether what no pattern takes is made parallel where the result is known to be the
         * same. Default: false.
         *
         * <ul>
         *   <li>{@code BertBlock}, {@code TransformerEncoderBlock}, {@code
         *       ScaledDotProductAttentionBlock}: by heads, and by column and row
         *   <li>two {@code Linear} in a {@code SequentialBlock}, or in a subclass such as {@code
         *       Mlp} that does not override {@code forward}, with nothing but elementwise functions
         *       and dropout between: column and row
         *   <li>another {@code Linear} with 1,024 outputs or more: column, gathered
         *   <li>{@code Embedding}, such as {@code TrainableWordEmbedding}: vocabulary
         *   <li>{@code BatchNorm}: {@link io.djltp.nn.SyncBatchNorm}
         *   <li>{@code Dropout}: {@link io.djltp.nn.ParallelDropout}
         * </ul>
         *
         * <p>All else, and what is below a block that a pattern takes, stays replicated. Where
         * MIXED mode gathers the rows is not chosen: a pattern has to say it, by {@code
         * Style.column().batchShardedInput()} or {@code Style.head()}.
         *
         * @param auto whether blocks are made parallel without a pattern
         * @return this builder
         */
        public Builder optAuto(boolean auto) {
            this.auto = auto;
            return this;
        }

        /**
         * Sets the number of ranks along the axis tensor, of which no block must leave one without
         * a part: what {@link #optAuto} finds with fewer heads or features stays whole. Default: 2.
         *
         * @param ranks the number of ranks
         * @return this builder
         */
        public Builder optRanks(int ranks) {
            Preconditions.checkArgument(ranks > 0, "A plan needs ranks, not " + ranks);
            this.ranks = ranks;
            return this;
        }

        /**
         * Sets the precision of the products of all column- and row-parallel layers that the plan
         * makes, those of attentions and encoders too. Default: float32.
         *
         * @param precision float32 or bfloat16
         * @return this builder
         * @throws IllegalArgumentException if it is another one
         */
        public Builder optPrecision(Precision precision) {
            this.precision = new LinearProduct(precision).precision();
            return this;
        }

        /**
         * Builds the plan.
         *
         * @return the plan
         */
        public Plan build() {
            Preconditions.checkArgument(
                    auto || !styles.isEmpty(),
                    "The plan is empty: add a pattern, or optAuto(true)");
            return new Plan(this);
        }
    }

    /** The style of each block of a network: by the patterns of a plan, or by its class. */
    private static final class StyleAssignment {

        private static final Logger logger = LoggerFactory.getLogger(StyleAssignment.class);
        private static final long LARGE = 1024; // outputs, for which one is worth a gather
        private static final int MOST_PATHS = 60; // in a message

        private final BlockTree tree;
        private final Map<Node, BlockStyle> styles = new LinkedHashMap<>();
        private final Map<Node, PathPattern> takenBy = new HashMap<>();
        private final Set<Node> taken = new HashSet<>(); // or below one that is

        StyleAssignment(BlockTree tree) {
            this.tree = tree;
        }

        /** Returns the style of each block that has one. */
        Map<Node, BlockStyle> getStyles() {
            return styles;
        }

        /**
         * Gives the blocks a style that a pattern takes.
         *
         * @throws IllegalArgumentException if it takes none, or one that another pattern has taken
         */
        void add(PathPattern pattern, BlockStyle style) {
            Set<Node> matched = pattern.match(tree);
            List<Node> fitting =
                    matched.stream().filter(node -> style.isFor(node.block())).toList();
            String quoted = "The pattern \"" + pattern + "\" matches no block";
            if (matched.isEmpty()) {
                throw new IllegalArgumentException(quoted + ". The blocks are: " + paths());
            }
            if (fitting.isEmpty()) {
                String found = list(matched.stream().map(Node::toString).toList());
                throw new IllegalArgumentException(
                        "%s that %s is for, which is %s, but %s"
                                .formatted(quoted, style, style.wanted(), found));
            }
            for (Node node : fitting) {
                PathPattern other = takenBy.putIfAbsent(node, pattern);
                if (other != null) {
                    throw twice(node, other, node, pattern);
                }
                put(node, style);
            }
            checkNested();
        }

        /** Gives a block a style, after a check that it can be put where the block is. */
        private void put(Node node, BlockStyle style) {
            if (style.typeOf(node.block()) != node.block().getClass()) {
                node.check(style.typeOf(node.block()));
            }
            styles.put(node, style);
        }

        private PathPattern pattern(Node node) {
            return Objects.requireNonNull(takenBy.get(node), "what has given the style");
        }

        /** A style of a whole block is one of all blocks below it. */
        private void checkNested() {
            for (Node node : styles.keySet()) {
                for (Node inner : styles.get(node).isWhole() ? node.allBelow() : Set.<Node>of()) {
                    if (styles.containsKey(inner)) {
                        throw twice(node, pattern(node), inner, pattern(inner));
                    }
                }
            }
        }

        /**
         * Gives a style to DJL's own blocks that have none, if it is known that the ranks then
         * compute what one would, and leaves the others as they are.
         *
         * @param ranks the number of ranks; each gets a part of every block that is cut
         */
        void addAuto(int ranks) {
            styles.forEach(this::take);
            for (Node node : tree.nodes()) {
                for (BlockStyle style : List.of(Styles.BERT, Styles.ENCODER, Styles.ATTENTION)) {
                    boolean free = node.allBelow().stream().noneMatch(taken::contains);
                    if (style.isFor(node.block()) && free && Styles.heads(node.block()) >= ranks) {
                        give(node, style);
                    }
                }
            }
            for (Node sequence : tree.nodes()) {
                LinearPairs.in(sequence.block(), ranks)
                        .forEach(
                                (block, style) -> {
                                    Node node = tree.nodeOf(block);
                                    if (node.isHeldOnce()) { // else it is used elsewhere, too
                                        give(node, style);
                                    }
                                });
            }
            for (Node node : tree.nodes()) {
                BlockStyle style = singleStyle(node.block(), ranks);
                if (style != null) {
                    give(node, style);
                }
            }
        }

        /** Returns the style of a block whatever is before and behind it, or null. */
        private static @Nullable BlockStyle singleStyle(Block block, int ranks) {
            if (Styles.DROPOUT.isFor(block) && Styles.rateOf(block) > 0) {
                return Styles.DROPOUT;
            } else if (Styles.BATCH_NORM.isFor(block)) {
                return Styles.BATCH_NORM;
            } else if (Styles.VOCABULARY.isFor(block) && Styles.words(block) >= ranks) {
                return Styles.VOCABULARY;
            } else if (Styles.isLinear(block) && Styles.units(block) >= Math.max(LARGE, ranks)) {
                return Style.column().gatherOutput();
            }
            return null;
        }

        /** Gives a block a style if no other has it and it can be replaced where it is. */
        private void give(Node node, BlockStyle style) {
            if (!taken.contains(node)) {
                try {
                    put(node, style);
                    take(node, style);
                } catch (IllegalArgumentException e) {
                    if (!isOnlyInDjl(node)) {
                        logger.warn("{} stays as it is: {}", node, e.getMessage());
                    }
                }
            }
        }

        /** Of what DJL's own classes hold, the trainer warns where it matters. */
        private boolean isOnlyInDjl(Node node) {
            return tree.nodes().stream()
                    .filter(holder -> holder.below().containsKey(node))
                    .allMatch(holder -> holder.block().getClass().getName().startsWith("ai.djl."));
        }

        private void take(Node node, BlockStyle style) {
            taken.add(node);
            if (style.isWhole()) {
                taken.addAll(node.allBelow());
            }
        }

        private IllegalArgumentException twice(
                Node node, PathPattern pattern, Node inner, PathPattern other) {
            String all = node == inner ? "" : ", which takes all of " + node + ",";
            return new IllegalArgumentException(
                    ("The plan cuts %s twice: by the pattern \"%s\"%s and by \"%s\". Let one"
                                    + " pattern take it")
                            .formatted(inner, pattern, all, other));
        }

        private String paths() {
            return list(
                    tree.nodes().stream().map(Node::path).filter(path -> !path.isEmpty()).toList());
        }

        private static String list(List<String> names) {
            String text = names.stream().limit(MOST_PATHS).collect(Collectors.joining(", "));
            int more = names.size() - MOST_PATHS;
            return more > 0 ? text + " and " + more + " more" : text;
        }
    }
}
