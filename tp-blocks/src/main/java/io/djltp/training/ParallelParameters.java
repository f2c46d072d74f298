package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Pair;

import io.djltp.bridge.Autograd;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.RankPool;
import io.djltp.sharding.RankParameterStore;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.sharding.WeightSource;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The parameters of a model while ranks train them: which are cut and how, the store of each rank,
 * and the way back into the model.
 *
 * <p>Rank 0 works on the model's own arrays of parameters that are not cut, so that the model
 * always holds them. A parameter that is cut is never whole: until it is gathered, the model holds
 * one element in its place, expanded to the full shape.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelParameters implements WeightSource {

    private final Block block;
    private final NDManager modelManager;
    private final RankPool ranks;
    private final List<RankParameterStore> stores = new ArrayList<>();
    private final List<ParallelContext> contexts = new ArrayList<>();
    private final Map<Parameter, ShardingStrategy> sharded = new LinkedHashMap<>();
    private final Map<Parameter, String> names = new IdentityHashMap<>();
    private final List<ShardedBlock> shardedBlocks = new ArrayList<>();

    ParallelParameters(Block block, NDManager modelManager, NDManager manager, RankPool ranks) {
        this.block = block;
        this.modelManager = modelManager;
        this.ranks = ranks;
        for (int i = 0; i < ranks.size(); i++) {
            ParallelContext context = ranks.getContext(i);
            contexts.add(context);
            NDManager own = manager.newSubManager(context.getDevice());
            own.setName("rank " + i);
            stores.add(new RankParameterStore(own, context));
        }
    }

    /** Initializes what is not initialized and hands out the parts. */
    void initialize(DataType dataType, Shape... shapes) {
        Map<Parameter, Initializer> initializers = new IdentityHashMap<>();
        findSharded(block, new boolean[1]);
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            for (Parameter parameter : sharded.keySet()) {
                if (!parameter.isInitialized()) {
                    initializers.put(parameter, parameter.getInitializer());
                    parameter.setInitializer(
                            new ShardedInitializer(parameter.getInitializer(), parameter, this));
                }
            }
            try {
                block.initialize(modelManager, dataType, shapes);
            } finally {
                initializers.forEach(Parameter::setInitializer);
            }
            for (Pair<String, Parameter> named : block.getParameters()) {
                names.put(named.getValue(), named.getKey());
                handOut(named.getKey(), named.getValue());
            }
        }
        if (ranks.isDistributed()) {
            replicate();
        }
        shardedBlocks.forEach(b -> b.setWeightSource(this));
    }

    /** Another process may have drawn other numbers, or loaded another file. */
    private void replicate() {
        ShardExchange exchange = new ShardExchange(ranks);
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            if (!sharded.containsKey(parameter) && seen.add(parameter)) {
                exchange.replicate(
                        named.getKey(),
                        context -> getStore(context).getValue(parameter, null, true));
            }
        }
    }

    /** Walks the tree in the order in which it is saved, and in which a sequence computes. */
    private void findSharded(Block parent, boolean[] gathered) {
        if (parent instanceof ShardedBlock) {
            ShardedBlock shardedBlock = (ShardedBlock) parent;
            gathered[0] |= shardedBlock.isBatchShardedInput();
            // what follows, and a bias that is added to the rank's rows, is data parallel again
            gathered[0] &= !shardedBlock.isBatchShardedOutput();
            if (size() > 1) {
                shardedBlocks.add(shardedBlock);
                for (Parameter parameter : parent.getDirectParameters().values()) {
                    ShardingStrategy strategy = shardedBlock.getShardingStrategy(parameter);
                    if (!strategy.isReplicated()) {
                        sharded.put(parameter, strategy);
                    }
                }
            }
        }
        for (Block child : parent.getChildren().values()) {
            findSharded(child, gathered);
        }
    }

    /** Returns whether a layer gathers the batch, as MIXED mode needs it. */
    boolean hasBatchGather() {
        return shardedBlocks.stream().anyMatch(ShardedBlock::isBatchShardedInput);
    }

    private void handOut(String name, Parameter parameter) {
        ShardingStrategy strategy = sharded.get(parameter);
        if (stores.get(0).contains(parameter)) {
            return; // freshly initialized, or shared by two blocks
        }
        NDArray array = parameter.getArray();
        if (strategy != null) {
            strategy.checkSplit(name, array.getShape(), size());
            createShards(parameter, array.getShape(), array.getDataType());
            scatterRows(parameter, array, 0, array.getShape());
            replaceArray(parameter, placeholder(array.getShape(), array.getDataType()));
            return;
        }
        for (int i = 0; i < stores.size(); i++) {
            RankParameterStore store = stores.get(i);
            Device device = contexts.get(i).getDevice();
            boolean own = i == 0 && array.getDevice().equals(device);
            NDArray value = own ? array : copy(array, store.getManager());
            store.setValue(parameter, value);
        }
    }

    private static NDArray copy(NDArray array, NDManager manager) {
        NDArray copy = manager.create(array.getShape(), array.getDataType());
        assign(copy, array);
        return copy;
    }

    /** Writes values in place, across devices. */
    private static void assign(NDArray target, NDArray values) {
        NDArray moved = values.toDevice(target.getDevice(), false); // the same if it is there
        target.set(new NDIndex("..."), moved);
        if (moved != values) {
            moved.close();
        }
    }

    /** Returns the number of ranks over which parameters are cut. */
    int size() {
        return contexts.get(0).getTensorGroup().getSize();
    }

    ShardingStrategy getStrategy(Parameter parameter) {
        return sharded.get(parameter);
    }

    /** Gives every rank an array for its shard of a parameter. */
    void createShards(Parameter parameter, Shape shape, DataType dataType) {
        ShardingStrategy strategy = sharded.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            Shape local = strategy.shardShape(shape, tensorRank(i), size());
            NDArray shard = stores.get(i).getManager().create(local, dataType);
            shard.setName(parameter.getName());
            stores.get(i).setValue(parameter, shard);
        }
    }

    /** Copies consecutive rows of a parameter to the shards that they belong to. */
    void scatterRows(Parameter parameter, NDArray rows, long firstRow, Shape whole) {
        ShardingStrategy strategy = sharded.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            NDArray shard = stores.get(i).getValue(parameter, null, true);
            strategy.scatterRows(rows, firstRow, whole, shard, tensorRank(i), size());
        }
    }

    /** Returns one zero in the place of all elements. */
    NDArray placeholder(Shape shape, DataType dataType) {
        long[] ones = new long[shape.dimension()];
        Arrays.fill(ones, 1);
        try (NDArray zero = modelManager.zeros(new Shape(ones), dataType)) {
            return zero.broadcast(shape);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void gather(Parameter parameter) {
        ShardingStrategy strategy = sharded.get(parameter);
        if (strategy != null) {
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                NDArray old = parameter.getArray();
                NDArray whole = modelManager.create(old.getShape(), old.getDataType());
                if (ranks.isDistributed()) {
                    new ShardExchange(ranks)
                            .gather(
                                    nameOf(parameter),
                                    strategy,
                                    context -> getStore(context).getValue(parameter, null, true),
                                    whole);
                } else {
                    for (int i = 0; i < stores.size(); i++) {
                        NDArray shard = stores.get(i).getValue(parameter, null, true);
                        strategy.gather(shard, whole, tensorRank(i), size());
                    }
                }
                replaceArray(parameter, whole);
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public void release(Parameter parameter) {
        if (sharded.containsKey(parameter)) {
            NDArray whole = parameter.getArray();
            replaceArray(parameter, placeholder(whole.getShape(), whole.getDataType()));
        }
    }

    /** Puts the trained values into the model, which from then on holds them itself. */
    void handBack() {
        shardedBlocks.forEach(b -> b.setWeightSource(null));
        for (Parameter parameter : sharded.keySet()) {
            gather(parameter);
            // one parameter at a time, so that no more than one of them is there twice
            stores.forEach(store -> store.remove(parameter));
        }
        for (Parameter parameter : block.getParameters().values()) {
            copyBack(parameter);
        }
    }

    /** Copies a replica of rank 0 back if it is not the model's own array. */
    void copyBack(Parameter parameter) {
        if (!sharded.containsKey(parameter) && stores.get(0).contains(parameter)) {
            NDArray value = stores.get(0).getValue(parameter, null, true);
            NDArray array = parameter.getArray();
            if (value != array) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    assign(array, value);
                }
            }
        }
    }

    List<RankParameterStore> getStores() {
        return stores;
    }

    RankParameterStore getStore(ParallelContext context) {
        return stores.get(contexts.indexOf(context));
    }

    /** Returns the name that a parameter has in the whole model. */
    String nameOf(Parameter parameter) {
        return names.getOrDefault(parameter, parameter.getName());
    }

    /** Returns the parameters that are trained, in the order of the block tree. */
    List<Parameter> getTrained() {
        List<Parameter> trained = new ArrayList<>();
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Parameter parameter : block.getParameters().values()) {
            if (parameter.requiresGradient() && seen.add(parameter)) {
                trained.add(parameter);
            }
        }
        return trained;
    }

    private int tensorRank(int rank) {
        return contexts.get(rank).getTensorGroup().getRank();
    }

    private static void replaceArray(Parameter parameter, NDArray array) {
        parameter.close();
        parameter.setShape(null); // a parameter takes an array only when it has no shape
        parameter.setArray(array);
        if (parameter.requiresGradient()) {
            array.setRequiresGradient(true);
        }
    }
}
