package io.djltp.parameters;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Pair;

import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.ArrayContents;
import io.djltp.torch.Autograd;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

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
public final class ParallelParameters implements WeightSource {

    private static final Logger logger = LoggerFactory.getLogger(ParallelParameters.class);

    private final Block block;
    private final NDManager modelManager;
    private final RankPool ranks;
    private final List<RankParameterStore> stores = new ArrayList<>();
    private final List<ParallelContext> contexts = new ArrayList<>();
    private final Map<Parameter, ShardingStrategy> sharded = new LinkedHashMap<>();
    private final Map<Parameter, String> names = new IdentityHashMap<>();
    private final List<ShardedBlock> shardedBlocks = new ArrayList<>();
    private Runnable beforeSave = () -> {};
    private RemoteShards remoteShards;

    /**
     * Creates the parameters of a training, without values.
     *
     * @param block the block
     * @param modelManager the manager of the model
     * @param manager the manager of what is made
     * @param ranks the ranks
     */
    public ParallelParameters(
            Block block, NDManager modelManager, NDManager manager, RankPool ranks) {
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

    /**
     * Initializes what is not initialized and hands out the parts.
     *
     * @param dataType the data type
     * @param shapes the shapes of the inputs
     */
    public void initialize(DataType dataType, Shape... shapes) {
        if (names.isEmpty()) {
            checkFree(block);
            ParameterUses.check(block, ranks.getWorldSize(), size());
        }
        Map<Parameter, Initializer> initializers = new IdentityHashMap<>();
        findSharded(block);
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
                BlockWalk.of(
                        block,
                        (each, path, certain) -> {
                            prepare(each, dataType, shapes);
                            warnOfRowMixing(each, path);
                        });
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
        names.keySet().forEach(p -> HeldParameters.hold(p, sharded.containsKey(p)));
    }

    private void warnOfRowMixing(Block each, String path) {
        if (each instanceof BatchNorm && contexts.get(0).getDataGroup().getSize() > 1) {
            logger.warn(
                    "{} is a batch normalization: where the batch is cut over the ranks, each"
                            + " normalizes its own rows, and the step is not that of one device."
                            + " TENSOR mode has no such limit.",
                    path);
        }
    }

    /**
     * DJL initializes a block that its parent has left out, such as a dropout in a field, in its
     * first training pass: all ranks would do that at once, to one object.
     */
    private void prepare(Block each, DataType dataType, Shape... shapes) {
        if (!each.isInitialized() && each.getParameters().isEmpty()) {
            try {
                each.initialize(modelManager, dataType, shapes);
            } catch (RuntimeException e) {
                logger.debug("{} is initialized by its first pass", each, e);
            }
        }
    }

    /**
     * Refuses a model that another trainer is training.
     *
     * @param block the block
     * @throws IllegalStateException if one is
     */
    public static void checkFree(Block block) {
        for (Pair<String, Parameter> named : block.getParameters()) {
            HeldParameters.checkFree(named.getKey(), named.getValue());
        }
    }

    /** Another process may have drawn other numbers, or loaded another file. */
    private void replicate() {
        ShardExchange exchange = new ShardExchange(ranks);
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            boolean cut = sharded.containsKey(parameter);
            if (seen.add(parameter) && !(cut && mesh().isOverlaid())) {
                exchange.replicate(
                        named.getKey(),
                        cut ? DeviceMesh.DATA : null, // along which ranks have the same shard
                        context -> getStore(context).getValue(parameter, null, true));
            }
        }
    }

    private void findSharded(Block parent) {
        if (parent instanceof ShardedBlock && size() > 1) {
            ShardedBlock shardedBlock = (ShardedBlock) parent;
            shardedBlocks.add(shardedBlock);
            for (Parameter parameter : parent.getDirectParameters().values()) {
                ShardingStrategy strategy = shardedBlock.getShardingStrategy(parameter);
                if (!strategy.isReplicated()) {
                    sharded.put(parameter, strategy);
                }
            }
        }
        for (Block child : parent.getChildren().values()) {
            findSharded(child);
        }
    }

    /**
     * Returns whether a layer gathers the batch, as MIXED mode needs it.
     *
     * @return whether a layer gathers the batch, as MIXED mode needs it
     */
    public boolean hasBatchGather() {
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
            if (own) {
                Autograd.zeroGradient(array); // of a trainer before, which a copy does not have
            }
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

    /**
     * Returns how a parameter is cut.
     *
     * @param parameter the parameter
     * @return the strategy, or {@code null} if every rank has the whole
     */
    public ShardingStrategy getStrategy(Parameter parameter) {
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

    /** Returns one element in the place of all, which is NaN, so that no result looks right. */
    NDArray placeholder(Shape shape, DataType dataType) {
        long[] ones = new long[shape.dimension()];
        Arrays.fill(ones, 1);
        try (NDArray one = modelManager.full(new Shape(ones), noWeight(dataType), dataType)) {
            return one.broadcast(shape);
        }
    }

    /** Integers have no NaN: the number that is furthest from all others. */
    private static float noWeight(DataType dataType) {
        switch (dataType) {
            case INT8:
                return Byte.MIN_VALUE;
            case UINT8:
                return 255;
            case INT16:
                return Short.MIN_VALUE;
            case INT32:
                return Integer.MIN_VALUE;
            case INT64:
                return Long.MIN_VALUE;
            default:
                return dataType.isFloating() ? Float.NaN : 0;
        }
    }

    /**
     * Sets what is done before the first parameter is gathered for saving, and again when steps
     * were made since.
     *
     * @param check what is done
     */
    public void setSaving(Runnable check) {
        beforeSave = check;
    }

    /**
     * Sets where the shards of other processes come from when one process saves.
     *
     * @param remote the source
     */
    public void setRemoteShards(RemoteShards remote) {
        remoteShards = remote;
    }

    /**
     * Returns the parameters that are cut, in the order of the block tree.
     *
     * @return the parameters that are cut, in the order of the block tree
     */
    public List<Parameter> getCut() {
        return new ArrayList<>(sharded.keySet());
    }

    /** Returns a local rank's shard of a parameter. */
    NDArray getShard(Parameter parameter, int localRank) {
        return stores.get(localRank).getValue(parameter, null, true);
    }

    /** {@inheritDoc} */
    @Override
    public void gather(Parameter parameter) {
        beforeSave.run();
        if (sharded.containsKey(parameter)) {
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                NDArray old = parameter.getArray();
                NDArray whole = modelManager.create(old.getShape(), old.getDataType());
                if (remoteShards != null) {
                    remoteShards.gather(parameter, whole);
                } else {
                    gatherLocal(parameter, whole);
                }
                replaceArray(parameter, whole);
            }
        }
    }

    private void gatherLocal(Parameter parameter, NDArray whole) {
        ShardingStrategy strategy = sharded.get(parameter);
        for (int i = 0; i < stores.size(); i++) {
            int rank = contexts.get(i).getRank();
            if (mesh().getFirstReplica(rank) == rank) {
                strategy.gather(getShard(parameter, i), whole, tensorRank(i), size());
            }
        }
    }

    /** Gathers a parameter for good. All processes do. */
    private void gatherInAll(Parameter parameter) {
        ShardingStrategy strategy = sharded.get(parameter);
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
                gatherLocal(parameter, whole);
            }
            replaceArray(parameter, whole);
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
    public void handBack() {
        shardedBlocks.forEach(b -> b.setWeightSource(null));
        for (Parameter parameter : sharded.keySet()) {
            // an initialization that failed has not come to all of them
            if (stores.get(0).contains(parameter) && parameter.isInitialized()) {
                gatherInAll(parameter);
                // one parameter at a time, so that no more than one of them is there twice
                stores.forEach(store -> store.remove(parameter));
            }
        }
        for (Parameter parameter : block.getParameters().values()) {
            copyBack(parameter);
        }
        names.keySet().forEach(HeldParameters::release);
    }

    /** Ends without the values: those of other processes cannot be had any more. */
    public void lose() {
        shardedBlocks.forEach(b -> b.setWeightSource(null));
        for (Parameter parameter : names.keySet()) {
            if (sharded.containsKey(parameter)) {
                HeldParameters.lose(parameter);
            } else {
                HeldParameters.release(parameter);
            }
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

    /**
     * Returns the stores of the ranks of this process.
     *
     * @return the stores, in the order of the ranks
     */
    public List<RankParameterStore> getStores() {
        return stores;
    }

    /**
     * Returns the store of a rank.
     *
     * @param context the rank
     * @return its store
     */
    public RankParameterStore getStore(ParallelContext context) {
        return stores.get(contexts.indexOf(context));
    }

    /**
     * Returns the name that a parameter has in the whole model.
     *
     * @param parameter the parameter
     * @return the name that a parameter has in the whole model
     */
    public String nameOf(Parameter parameter) {
        return names.getOrDefault(parameter, parameter.getName());
    }

    /**
     * Returns the parameter of a name that the ranks have values of, or {@code null}.
     *
     * @param name the name of the parameter
     * @return the parameter of a name that the ranks have values of, or {@code null}
     */
    public Parameter byName(String name) {
        return names.entrySet().stream()
                .filter(named -> named.getValue().equals(name))
                .map(Map.Entry::getKey)
                .findFirst()
                .orElse(null);
    }

    /**
     * Returns the parameters that are trained, in the order of the block tree.
     *
     * @return the parameters that are trained, in the order of the block tree
     */
    public List<Parameter> getTrained() {
        return select(true);
    }

    /** Returns the parameters that have no gradient, in the order of the block tree. */
    List<Parameter> getUntrained() {
        List<Parameter> untrained = select(false);
        untrained.removeAll(sharded.keySet());
        return untrained;
    }

    private List<Parameter> select(boolean requiresGradient) {
        List<Parameter> selected = new ArrayList<>();
        Set<Parameter> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Parameter parameter : block.getParameters().values()) {
            if (parameter.requiresGradient() == requiresGradient && seen.add(parameter)) {
                selected.add(parameter);
            }
        }
        return selected;
    }

    private DeviceMesh mesh() {
        return contexts.get(0).getMesh();
    }

    private int tensorRank(int rank) {
        return contexts.get(rank).getTensorGroup().getRank();
    }

    /** The array stays the same object: a predictor or a trainer of DJL's may keep it. */
    private static void replaceArray(Parameter parameter, NDArray contents) {
        NDArray array = parameter.getArray();
        ArrayContents.replace(array, contents);
        array.setRequiresGradient(parameter.requiresGradient());
    }
}
