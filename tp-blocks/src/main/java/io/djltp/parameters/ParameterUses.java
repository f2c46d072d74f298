package io.djltp.parameters;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SymbolBlock;
import ai.djl.util.Pair;

import io.djltp.sharding.ShardingStrategy;

import java.util.IdentityHashMap;
import java.util.Map;

/** Which blocks of a tree use a parameter, and whether ranks can give it to all of them. */
final class ParameterUses {

    private final Map<Parameter, Use> uses = new IdentityHashMap<>();
    private final int ranks;
    private final int tensorRanks;

    private ParameterUses(int ranks, int tensorRanks) {
        this.ranks = ranks;
        this.tensorRanks = tensorRanks;
    }

    /** A block that has a parameter, and how that is cut there. */
    private record Use(String path, Block block, ShardingStrategy strategy) {

        @Override
        public String toString() {
            return path + " (" + block.getClass().getSimpleName() + ")";
        }
    }

    /**
     * Checks a model.
     *
     * @param model the root of the tree
     * @param ranks the number of ranks of all processes
     * @param tensorRanks the number of ranks over which parameters are cut
     * @throws IllegalArgumentException if a parameter is used under two strategies
     * @throws UnsupportedOperationException if a block has trained parameters that ranks cannot
     *     have replicas of
     */
    static void check(Block model, int ranks, int tensorRanks) {
        new ParameterUses(ranks, tensorRanks).walk(model, "");
    }

    private void walk(Block block, String path) {
        String name = path.isEmpty() ? "the model's block" : path;
        for (Pair<String, Parameter> named : block.getDirectParameters()) {
            Parameter parameter = named.getValue();
            if (ranks > 1 && block instanceof SymbolBlock && parameter.requiresGradient()) {
                throw new UnsupportedOperationException(
                        "The block "
                                + name
                                + " ("
                                + block.getClass().getSimpleName()
                                + ") computes with parameters of its own, such as "
                                + named.getKey()
                                + shape(parameter)
                                + ", of which "
                                + ranks
                                + " ranks cannot have replicas: load the model without"
                                + " trainParam, so that they stay as they are, or train it with one"
                                + " rank");
            }
            if (tensorRanks > 1) {
                add(named.getKey(), parameter, new Use(name, block, strategy(block, parameter)));
            }
        }
        for (Pair<String, Block> child : block.getChildren()) {
            walk(child.getValue(), path + (path.isEmpty() ? "" : "_") + child.getKey());
        }
    }

    private static ShardingStrategy strategy(Block block, Parameter parameter) {
        return block instanceof ShardedBlock
                ? ((ShardedBlock) block).getShardingStrategy(parameter)
                : ShardingStrategy.replicate();
    }

    private void add(String name, Parameter parameter, Use use) {
        Use first = uses.putIfAbsent(parameter, use);
        if (first == null
                || first.strategy.equals(use.strategy)
                || first.strategy.isReplicated() && use.strategy.isReplicated()
                || cutAlike(parameter, first.strategy, use.strategy)) {
            return;
        }
        throw new IllegalArgumentException(
                "The parameter "
                        + name
                        + shape(parameter)
                        + " has two strategies over "
                        + tensorRanks
                        + " ranks: "
                        + first.strategy
                        + " in "
                        + first
                        + ", "
                        + use.strategy
                        + " in "
                        + use
                        + ". Let both blocks cut it alike, or give each a parameter of its own");
    }

    /** Returns whether two strategies that are not equal do the same to a known shape. */
    private boolean cutAlike(Parameter parameter, ShardingStrategy one, ShardingStrategy other) {
        Shape shape = shapeOf(parameter);
        return shape != null
                && !one.isReplicated()
                && !other.isReplicated()
                && one.axis(shape) == other.axis(shape)
                && one.cut(shape, tensorRanks).equals(other.cut(shape, tensorRanks));
    }

    private static Shape shapeOf(Parameter parameter) {
        return parameter.isInitialized() ? parameter.getArray().getShape() : parameter.getShape();
    }

    private static String shape(Parameter parameter) {
        Shape shape = shapeOf(parameter);
        return shape == null ? "" : " " + shape;
    }
}
