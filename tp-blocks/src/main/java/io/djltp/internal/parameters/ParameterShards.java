package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SymbolBlock;
import ai.djl.util.Pair;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/** Which parameters of a model are cut, how, and the shards of the ranks of this process. */
final class ParameterShards {

    private final List<ParallelContext> contexts;
    private final List<RankParameterStore> stores;
    private final Map<Parameter, ShardingStrategy> strategies = new LinkedHashMap<>();
    private final List<ShardedBlock> blocks = new ArrayList<>();

    ParameterShards(List<ParallelContext> contexts, List<RankParameterStore> stores) {
        this.contexts = contexts;
        this.stores = stores;
    }

    /** Finds the blocks of a tree that are cut. */
    void find(Block parent) {
        if (parent instanceof ShardedBlock && size() > 1) {
            ShardedBlock shardedBlock = (ShardedBlock) parent;
            blocks.add(shardedBlock);
            for (Parameter parameter : parent.getDirectParameters().values()) {
                ShardingStrategy strategy = shardedBlock.getShardingStrategy(parameter);
                if (!strategy.isReplicated()) {
                    strategies.put(parameter, strategy);
                }
            }
        }
        for (Pair<String, Block> child : parent.getChildren()) {
            find(child.getValue());
        }
    }

    /** Returns the number of ranks over which parameters are cut. */
    int size() {
        return contexts.get(0).getTensorGroup().getSize();
    }

    /** Returns the blocks that compute with shards. */
    List<ShardedBlock> blocks() {
        return blocks;
    }

    /** Returns the parameters that are cut, in the order of the block tree. */
    List<Parameter> parameters() {
        return new ArrayList<>(strategies.keySet());
    }

    /** Returns whether a parameter is cut. */
    boolean contains(Parameter parameter) {
        return strategies.containsKey(parameter);
    }

    /** Returns how a parameter is cut, or {@code null} if every rank has the whole. */
    @Nullable ShardingStrategy strategyOf(Parameter parameter) {
        return strategies.get(parameter);
    }

    /** Returns how a parameter is cut that is. */
    ShardingStrategy of(Parameter parameter) {
        ShardingStrategy strategy = strategies.get(parameter);
        if (strategy == null) {
            throw new IllegalStateException(parameter.getName() + " is not cut over the ranks");
        }
        return strategy;
    }

    /** Gives every rank an array for its shard of a parameter. */
    void create(Parameter parameter, Shape shape, DataType dataType) {
        ShardingStrategy strategy = of(parameter);
        for (int i = 0; i < stores.size(); i++) {
            Shape local = strategy.shardShape(shape, rank(i), size());
            NDArray shard = stores.get(i).getManager().create(local, dataType);
            shard.setName(parameter.getName());
            stores.get(i).setValue(parameter, shard);
        }
    }

    /** Gives every rank its shard of a parameter as it is made, without the whole. */
    void fill(Parameter parameter, Shape shape, DataType dataType, SlicedInitializer initializer) {
        ShardingStrategy strategy = of(parameter);
        Cut cut = strategy.cut(shape, size());
        for (int i = 0; i < stores.size(); i++) {
            NDArray shard =
                    initializer.initialize(
                            stores.get(i).getManager(),
                            shape,
                            dataType,
                            strategy.axis(shape),
                            cut.getRanges(rank(i)));
            shard.setName(parameter.getName());
            stores.get(i).setValue(parameter, shard);
        }
    }

    /** Returns the shard of a rank of this process. */
    NDArray get(Parameter parameter, int localRank) {
        return stores.get(localRank).getHeld(parameter);
    }

    /** Returns the place of a rank of this process in its tensor-parallel group. */
    int rank(int localRank) {
        return contexts.get(localRank).getTensorGroup().getRank();
    }

    /** Returns whether no earlier rank of the mesh has the shards of a rank of this process. */
    private boolean isFirstReplica(int localRank) {
        ParallelContext context = contexts.get(localRank);
        return context.getMesh().getFirstReplica(context.getRank()) == context.getRank();
    }

    /** Returns whether the shards of this process are those that other replicas get. */
    boolean hasFirstReplica() {
        return IntStream.range(0, stores.size()).anyMatch(this::isFirstReplica);
    }

    /** Copies consecutive rows of a parameter to the shards that they belong to. */
    void scatterRows(Parameter parameter, NDArray rows, long firstRow, Shape whole) {
        ShardingStrategy strategy = of(parameter);
        for (int i = 0; i < stores.size(); i++) {
            strategy.scatterRows(rows, firstRow, whole, get(parameter, i), rank(i), size());
        }
    }

    /** Copies what this process has of consecutive rows of a parameter to their places in them. */
    void gatherRows(Parameter parameter, NDArray rows, long firstRow, Shape whole) {
        ShardingStrategy strategy = of(parameter);
        for (int i = 0; i < stores.size(); i++) {
            if (isFirstReplica(i)) {
                NDArray shard = get(parameter, i);
                strategy.gatherRows(shard, rows, firstRow, whole, rank(i), size());
            }
        }
    }

    /**
     * Checks that the ranks can give parameters to all blocks that use them.
     *
     * @throws IllegalArgumentException if a parameter is used under two strategies
     * @throws UnsupportedOperationException if a block has trained parameters that ranks cannot
     *     have replicas of
     */
    static void check(Block model, int ranks, int tensorRanks) {
        new ParameterUses(ranks, tensorRanks).walk(model, "");
    }

    /** Which blocks of a tree use a parameter, and whether ranks can give it to all of them. */
    private static final class ParameterUses {

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

        private void walk(Block block, String path) {
            String name = path.isEmpty() ? "the model's block" : path;
            for (Pair<String, Parameter> named : block.getDirectParameters()) {
                Parameter parameter = named.getValue();
                if (ranks > 1 && block instanceof SymbolBlock && parameter.requiresGradient()) {
                    throw new UnsupportedOperationException(
                            ("The block %s (%s) computes with parameters of its own, such"
                                            + " as %s%s, of which %s ranks cannot have replicas:"
                                            + " load the model without trainParam, so that they"
                                            + " stay as they are, or train it with one rank")
                                    .formatted(
                                            name,
                                            block.getClass().getSimpleName(),
                                            named.getKey(),
                                            shape(parameter),
                                            ranks));
                }
                if (tensorRanks > 1) {
                    add(
                            named.getKey(),
                            parameter,
                            new Use(name, block, strategy(block, parameter)));
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
            throw Errors.argument(
                    "The parameter %s%s has two strategies over %s ranks: %s in %s, %s in %s."
                            + " Let both blocks cut it alike, or give each a parameter of its own",
                    name, shape(parameter), tensorRanks, first.strategy, first, use.strategy, use);
        }

        /** Returns whether two strategies that are not equal do the same to a known shape. */
        private boolean cutAlike(
                Parameter parameter, ShardingStrategy one, ShardingStrategy other) {
            Shape shape = shapeOf(parameter);
            return shape != null
                    && !one.isReplicated()
                    && !other.isReplicated()
                    && one.axis(shape) == other.axis(shape)
                    && one.cut(shape, tensorRanks).equals(other.cut(shape, tensorRanks));
        }

        private static Shape shapeOf(Parameter parameter) {
            return parameter.isInitialized()
                    ? parameter.getArray().getShape()
                    : parameter.getShape();
        }

        private static String shape(Parameter parameter) {
            Shape shape = shapeOf(parameter);
            return shape == null ? "" : " " + shape;
        }
    }
}
