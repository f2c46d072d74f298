package io.djltp.nn;

import ai.djl.nn.Block;
import ai.djl.util.Pair;

import io.djltp.internal.Errors;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.torch.DropoutMask;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * Low-rank adapters (LoRA) beside frozen weights: a layer computes {@code x W^T + s drop(x) A^T
 * B^T} and trains only A [r, in] and B [out, r], with s = alpha / r.
 *
 * <pre>{@code
 * LoraConfig.builder().optRank(16).optTargets("query", "value").build().addTo(network);
 * }</pre>
 *
 * <p>A starts uniform in {@code (-1/sqrt(in), 1/sqrt(in))} and B is zero, as in PEFT, so that
 * training begins with the outputs of the network. On ranks, B of a {@link ColumnParallelLinear} is
 * cut as the weight, and A of a {@link RowParallelLinear}; the other one is on all ranks. A forward
 * pass communicates nothing more. Per step, the gradient of the one that is on all ranks is summed.
 * Values, and what dropout drops, do not depend on the number of ranks.
 *
 * <p>{@link io.djltp.exchange.WeightExport} writes the sums W + s B A, and with {@code
 * optAdapters(true)} A and B.
 *
 * <p>Hu et al., 2021, <a href="https://arxiv.org/abs/2106.09685">arXiv:2106.09685</a>.
 */
public final class LoraConfig {

    /** A target: all parallel linear layers. */
    public static final String ALL_LINEAR = "all-linear";

    private static final List<String> DEFAULT_TARGETS =
            List.of("q_proj", "v_proj", "qkv_proj", "c_attn", "query", "value", "queryKeyValue");

    private final int rank;
    private final float alpha;
    private final float dropout;
    private final boolean rankStabilized;
    private final List<String> targets; // or none: the default ones
    private final @Nullable Pattern pattern;

    private LoraConfig(Builder builder) {
        rank = builder.rank;
        alpha = builder.alpha;
        dropout = builder.dropout;
        rankStabilized = builder.rankStabilized;
        targets = builder.targets;
        pattern = builder.pattern;
    }

    /**
     * Adds adapters to a network, and freezes everything else. The targets are the ends of the
     * layers' paths, {@code layers.layer.attention.query}, without the counts of DJL.
     *
     * @param network the network, which no trainer is training
     * @return the names of the layers that have an adapter now
     * @throws IllegalArgumentException if a target is no {@link ColumnParallelLinear} or {@link
     *     RowParallelLinear}, or has an adapter already
     * @throws IllegalStateException if a trainer is training the network
     */
    public List<String> addTo(Block network) {
        Map<Block, List<String>> names = new HashMap<>();
        findLayers(network, "", names);
        return addTo(network, names);
    }

    /**
     * Adds adapters to layers that have names, and freezes everything else.
     *
     * @param network the network, which no trainer is training
     * @param names the names of the layers, of which targets are the ends: several of one that
     *     stacks layers of as many outputs each, which have an adapter each
     * @return the names of the layers that have an adapter now
     * @throws IllegalArgumentException as {@link #addTo(Block)}, or if a target is one of stacked
     *     layers and another one is not
     * @throws IllegalStateException if a trainer is training the network
     */
    public List<String> addTo(Block network, Map<Block, List<String>> names) {
        ParallelParameters.checkFree(network);
        Map<Block, List<String>> layers = new LinkedHashMap<>();
        findLayers(network, "", layers);
        Map<AbstractParallelLinear, Integer> found = new LinkedHashMap<>();
        List<String> adapted = new ArrayList<>();
        Set<String> unused = new HashSet<>(targets);
        for (Block block : layers.keySet()) {
            List<String> own = names.getOrDefault(block, List.of());
            List<String> chosen = own.stream().filter(name -> isTarget(name, unused)).toList();
            if (chosen.isEmpty()) {
                continue;
            }
            Errors.check(
                    chosen.size() == own.size(),
                    "%s are one layer here: let all of them be targets, or none",
                    own);
            AbstractParallelLinear layer = (AbstractParallelLinear) block;
            Errors.check(!layer.hasLora(), "The layer %s has an adapter already", own);
            found.put(layer, own.size());
            adapted.addAll(own);
        }
        if (found.isEmpty() || !unused.isEmpty()) {
            throw Errors.argument(
                    "The network has no ColumnParallelLinear or RowParallelLinear of the name %s."
                            + " Targets are ends of names such as %s",
                    unused.isEmpty() ? pattern == null ? DEFAULT_TARGETS : pattern : unused,
                    layers.keySet().stream()
                            .flatMap(block -> names.getOrDefault(block, List.of()).stream())
                            .map(name -> name.substring(name.lastIndexOf('.') + 1))
                            .distinct()
                            .sorted()
                            .limit(10)
                            .toList());
        }
        network.freezeParameters(true);
        found.forEach((layer, parts) -> layer.setLora(new LoraUpdate(layer, this, parts)));
        return adapted;
    }

    private static void findLayers(Block block, String path, Map<Block, List<String>> found) {
        if (block instanceof ColumnParallelLinear || block instanceof RowParallelLinear) {
            found.put(block, List.of(path));
        }
        for (Pair<String, Block> child : block.getChildren()) {
            String name = child.getKey().replaceFirst("^\\d{2,}(?=\\D)", "");
            findLayers(child.getValue(), path.isEmpty() ? name : path + "." + name, found);
        }
    }

    /** Returns whether a layer is a target, as PEFT decides it. */
    private boolean isTarget(String name, Set<String> unused) {
        if (pattern != null) {
            return pattern.matcher(name).matches();
        }
        boolean all = unused.remove(ALL_LINEAR) || targets.contains(ALL_LINEAR);
        boolean found = false;
        for (String target : targets.isEmpty() ? DEFAULT_TARGETS : targets) {
            if (name.equals(target) || name.endsWith("." + target)) {
                unused.remove(target);
                found = true;
            }
        }
        return all || found;
    }

    /**
     * Returns the rank of the updates.
     *
     * @return the rank r
     */
    public int getRank() {
        return rank;
    }

    /**
     * Returns alpha.
     *
     * @return what the updates are multiplied by, before they are divided
     */
    public float getAlpha() {
        return alpha;
    }

    /**
     * Returns what updates are multiplied by.
     *
     * @return alpha / r, or alpha / sqrt(r)
     */
    public float getScale() {
        return (float) (alpha / (rankStabilized ? Math.sqrt(rank) : rank));
    }

    /**
     * Returns the probability with which an element of an input is dropped.
     *
     * @return the rate
     */
    public float getDropout() {
        return dropout;
    }

    /**
     * Returns whether updates are divided by sqrt(r).
     *
     * @return whether {@code optRankStabilized} was set
     */
    public boolean isRankStabilized() {
        return rankStabilized;
    }

    /**
     * Returns the targets.
     *
     * @return the ends of the names of layers, empty for the default ones or a pattern
     */
    public List<String> getTargets() {
        return targets;
    }

    /**
     * Returns the pattern of whole names.
     *
     * @return the regular expression, or {@code null}
     */
    public @Nullable String getTargetPattern() {
        return pattern == null ? null : pattern.pattern();
    }

    /**
     * Creates a builder to build a {@code LoraConfig}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link LoraConfig}. */
    public static final class Builder {

        private int rank = 8;
        private float alpha = 8;
        private float dropout;
        private boolean rankStabilized;
        private List<String> targets = List.of();
        private @Nullable Pattern pattern;

        private Builder() {}

        /**
         * Sets the rank r of the updates. Default: 8.
         *
         * @param rank the rank, 1 or more
         * @return this builder
         */
        public Builder optRank(int rank) {
            Errors.check(rank > 0, "The rank of an adapter must be 1 or more, not %s", rank);
            this.rank = rank;
            return this;
        }

        /**
         * Sets alpha: updates are multiplied by alpha / r. Default: 8.
         *
         * @param alpha the number, above 0
         * @return this builder
         */
        public Builder optAlpha(float alpha) {
            Errors.check(
                    alpha > 0 && Float.isFinite(alpha),
                    "The alpha of an adapter must be a number above 0, not %s",
                    alpha);
            this.alpha = alpha;
            return this;
        }

        /**
         * Sets with what probability an element of the input of an update is set to 0 in training,
         * by a {@link ParallelDropout}. Default: 0.
         *
         * @param rate the probability, from 0 to 1
         * @return this builder
         */
        public Builder optDropout(float rate) {
            dropout = DropoutMask.checkRate(rate);
            return this;
        }

        /**
         * Sets whether updates are multiplied by alpha / sqrt(r) (rsLoRA: Kalajdzievski, 2023, <a
         * href="https://arxiv.org/abs/2312.03732">arXiv:2312.03732</a>). Default: false.
         *
         * @param rankStabilized whether the square root is taken
         * @return this builder
         */
        public Builder optRankStabilized(boolean rankStabilized) {
            this.rankStabilized = rankStabilized;
            return this;
        }

        /**
         * Sets which layers have an adapter. Default: queries and values, {@code q_proj} and {@code
         * v_proj}, {@code query} and {@code value}, {@code qkv_proj}, {@code c_attn} or {@code
         * queryKeyValue}.
         *
         * @param targets the last words of their names, such as {@code q_proj}, or {@link
         *     #ALL_LINEAR}
         * @return this builder
         */
        public Builder optTargets(String... targets) {
            this.targets = List.of(targets);
            return this;
        }

        /**
         * Sets which layers have an adapter, by their whole names.
         *
         * @param regex a regular expression, such as {@code .*\.[0-3]\.mlp\..*}
         * @return this builder
         * @throws IllegalArgumentException if it is none
         */
        public Builder optTargetPattern(String regex) {
            try {
                pattern = Pattern.compile(regex);
            } catch (PatternSyntaxException e) {
                throw new IllegalArgumentException(
                        "The targets of an adapter are no regular expression: " + regex, e);
            }
            return this;
        }

        /**
         * Builds the configuration.
         *
         * @return the configuration
         */
        public LoraConfig build() {
            return new LoraConfig(this);
        }
    }
}
