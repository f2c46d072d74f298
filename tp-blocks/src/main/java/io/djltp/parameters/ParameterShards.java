package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import io.djltp.cut.Cut;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;

import java.util.ArrayList;
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
    ShardingStrategy strategyOf(Parameter parameter) {
        return strategies.get(parameter);
    }

    /** Gives every rank an array for its shard of a parameter. */
    void create(Parameter parameter, Shape shape, DataType dataType) {
        ShardingStrategy strategy = strategies.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            Shape local = strategy.shardShape(shape, rank(i), size());
            NDArray shard = stores.get(i).getManager().create(local, dataType);
            shard.setName(parameter.getName());
            stores.get(i).setValue(parameter, shard);
        }
    }

    /** Gives every rank its shard of a parameter as it is made, without the whole. */
    void fill(Parameter parameter, Shape shape, DataType dataType, SlicedInitializer initializer) {
        ShardingStrategy strategy = strategies.get(parameter);
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
        ShardingStrategy strategy = strategies.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            strategy.scatterRows(rows, firstRow, whole, get(parameter, i), rank(i), size());
        }
    }

    /** Copies what this process has of consecutive rows of a parameter to their places in them. */
    void gatherRows(Parameter parameter, NDArray rows, long firstRow, Shape whole) {
        ShardingStrategy strategy = strategies.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            if (isFirstReplica(i)) {
                NDArray shard = get(parameter, i);
                strategy.gatherRows(shard, rows, firstRow, whole, rank(i), size());
            }
        }
    }
}
