package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.NativeResource;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.collective.Communicator;
import io.djltp.internal.Errors;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.ArrayMemory;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.Checksum;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.DeviceMesh;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/**
 * The parameters of a model while ranks train them: which are cut and how, the store of each rank,
 * and the way back into the model.
 *
 * <p>Rank 0 works on the model's own arrays of parameters that are not cut, so that the model
 * always holds them. A parameter that is cut is never whole: until it is gathered, the model holds
 * a few elements in its place, laid out as the full shape.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ParallelParameters {

    private static final Logger logger = LoggerFactory.getLogger(ParallelParameters.class);
    private static final long CHECKSUM_BLOCK = 1 << 20; // elements

    private final Block block;
    private final NDManager modelManager;
    private final RankPool ranks;
    private final List<RankParameterStore> stores = new ArrayList<>();
    private final List<ParallelContext> contexts = new ArrayList<>();
    private final ParameterShards shards;
    private final Map<Parameter, Long> drawn = new IdentityHashMap<>(); // checksums
    private final WeightSource source;
    private final Map<Parameter, String> names = new IdentityHashMap<>();
    private final Map<String, Parameter> byName = new HashMap<>();
    private List<Parameter> all = List.of(); // in the order of the block tree, each once
    private ReplicaGroups replicas = ReplicaGroups.NONE;

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
        shards = new ParameterShards(contexts, stores);
        source = new WeightSource(modelManager, ranks, this, shards);
    }

    /**
     * Initializes what is not initialized: what is cut right in its shards. No other process is
     * asked for anything.
     *
     * @param dataType the data type
     * @param shapes the shapes of the inputs
     */
    public void prepare(DataType dataType, Shape... shapes) {
        synchronized (source) { // another thread may close
            checkOpen();
            boolean first = names.isEmpty();
            if (first) {
                checkFree(block);
                ParameterShards.check(block, ranks.getWorldSize(), shards.size());
            }
            shards.find(block);
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                initialize(dataType, shapes);
            }
            for (Pair<String, Parameter> named : block.getParameters()) {
                names.put(named.getValue(), named.getKey());
            }
            names.forEach((parameter, name) -> byName.put(name, parameter));
            all = block.getParameters().values().stream().distinct().toList();
            if (first && shards.parameters().isEmpty()) {
                warnOfWhole();
            }
        }
    }

    /** Ranks that compute the same are of no use, and nothing else would tell of them. */
    private void warnOfWhole() {
        DeviceMesh mesh = contexts.get(0).getMesh();
        boolean many = mesh.isCut(DeviceMesh.TENSOR) && !mesh.isOverlaid();
        if (many && contexts.get(0).getRank() == 0) {
            logger.warn(
                    "No layer of {} is split: each of the {} ranks along the axis tensor holds and"
                            + " computes all of it. Call TensorParallel.parallelize(block,"
                            + " Plan.auto()) before, build it from parallel layers, or use"
                            + " ParallelConfig.data(...)",
                    block.getClass().getSimpleName(),
                    mesh.getSize(DeviceMesh.TENSOR));
        }
    }

    private void checkOpen() {
        Errors.checkState(
                !source.isEnded(),
                "Another thread has closed the trainer while this one initializes it");
    }

    /** Each process draws the whole and keeps its parts, which fit together if the seeds agree. */
    private void noteDrawn(Parameter parameter, NDArray values) {
        if (ranks.isDistributed()) {
            drawn.put(parameter, checksum(values));
        }
    }

    /** Returns the checksum of an array, a block of rows at a time, as one takes memory. */
    private static long checksum(NDArray values) {
        long rows = values.getShape().get(0);
        long step = Math.max(1, CHECKSUM_BLOCK * rows / Math.max(1, values.size()));
        long sum = 0;
        for (long first = 0; first < rows; first += step) {
            try (NDArray block =
                    values.get(new NDIndex().addSliceDim(first, Math.min(rows, first + step)))) {
                sum = 31 * sum + Checksum.of(block);
            }
        }
        return sum;
    }

    /** Hands out the parts of what was initialized. All processes call it. */
    public void handOut() {
        synchronized (source) { // another thread may save, or close
            checkOpen();
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                for (Pair<String, Parameter> named : block.getParameters()) {
                    handOut(named.getKey(), named.getValue());
                }
            }
            if (ranks.isDistributed()) {
                agree();
            }
            replicas = ReplicaGroups.of(ranks, this);
            names.keySet().forEach(p -> HeldParameters.hold(p, shards.contains(p), source));
            shards.parameters().stream()
                    .filter(Parameter::isInitialized)
                    .forEach(Placeholder::showInGraphs);
            checkBatchGather();
            Map<Block, String> blocks = BlockWalk.namesOf(block);
            contexts.forEach(context -> context.setBlockNames(blocks));
        }
    }

    /**
     * Returns a checksum of the whole values that a parameter starts with, between {@link #prepare}
     * and {@link #handOut} in a job of several processes.
     *
     * @param parameter a parameter
     * @return the checksum, or {@code null} if the values of another process count, or if this one
     *     never has the whole
     */
    public @Nullable Long initialChecksum(Parameter parameter) {
        if (!shards.contains(parameter) || !shards.hasFirstReplica()) {
            return null;
        }
        boolean given = parameter.isInitialized() && !stores.get(0).contains(parameter);
        return given ? Long.valueOf(checksum(parameter.getArray())) : drawn.get(parameter);
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

    private void checkBatchGather() {
        boolean overlaid = contexts.get(0).getMesh().isOverlaid() && ranks.getWorldSize() > 1;
        Errors.check(
                !overlaid || shards.blocks().stream().anyMatch(ShardedBlock::isBatchShardedInput),
                "MIXED mode needs a layer where the data-parallel body ends and the"
                        + " tensor-parallel head begins: build it with"
                        + " optBatchShardedInput(true), or name it in the plan as"
                        + " Style.column().batchShardedInput() or Style.head(), which optAuto"
                        + " leaves to you; or use TENSOR or DATA mode, or a mesh of both");
    }

    private void handOut(String name, Parameter parameter) {
        ShardingStrategy strategy = shards.strategyOf(parameter);
        if (stores.get(0).contains(parameter)) {
            return; // freshly initialized, or shared by two blocks
        }
        NDArray array = parameter.getArray();
        if (strategy != null) {
            strategy.checkSplit(name, array.getShape(), shards.size());
            shards.create(parameter, array.getShape(), array.getDataType());
            shards.scatterRows(parameter, array, 0, array.getShape());
            Placeholder.put(modelManager, parameter);
            return;
        }
        replicate(parameter);
    }

    /**
     * {@return how a parameter is cut, or {@code null} if every rank has the whole}
     *
     * @param parameter the parameter
     */
    public @Nullable ShardingStrategy getStrategy(Parameter parameter) {
        return shards.strategyOf(parameter);
    }

    /** Returns the shards of this process. */
    ParameterShards getShards() {
        return shards;
    }

    /** {@return the groups of ranks that hold the same parts of parameters that are cut} */
    public ReplicaGroups getReplicas() {
        return replicas;
    }

    /**
     * Sets what is done before the first parameter is gathered for saving, and again when steps
     * were made since.
     *
     * @param check what is done
     */
    public void setSaving(Runnable check) {
        source.setSaving(check);
    }

    /**
     * Saves the model. All processes call it.
     *
     * @param writes whether this one writes the model, or only lets another one have its shards
     * @param writer writes it
     * @throws IOException if it cannot be written
     */
    public void save(boolean writes, WeightSource.Writer writer) throws IOException {
        if (writes) {
            source.save(block, writer);
        } else {
            source.join(block);
        }
    }

    /** {@return the parameters that are cut, in the order of the block tree} */
    public List<Parameter> getCut() {
        return shards.parameters();
    }

    /** Puts the trained values into the model, which from then on holds them itself. */
    public void handBack() {
        synchronized (source) { // another thread may save, or close
            source.end();
            for (Parameter parameter : shards.parameters()) {
                // an initialization that failed has not come to all of them
                if (stores.get(0).contains(parameter) && isThere(parameter)) {
                    source.gatherToClose(parameter);
                    // one parameter at a time, so that no more than one of them is there twice
                    stores.forEach(store -> store.remove(parameter));
                }
            }
            block.getParameters().values().forEach(this::copyBack);
            names.keySet().forEach(HeldParameters::release);
        }
    }

    /**
     * Ends without the values, which cannot be had any more.
     *
     * @param why how that came, to follow "was lost"
     */
    public void lose(String why) {
        synchronized (source) { // another thread may save, or close
            source.end();
            for (Parameter parameter : names.keySet()) {
                // else it was not handed out, and the model has it
                if (shards.contains(parameter) && stores.get(0).contains(parameter)) {
                    HeldParameters.lose(parameter, why);
                } else {
                    HeldParameters.release(parameter);
                }
            }
        }
    }

    /** Returns whether the model has an array of a parameter that was not closed. */
    private static boolean isThere(Parameter parameter) {
        return parameter.isInitialized()
                && !((NativeResource<?>) parameter.getArray()).isReleased();
    }

    /** Gives the model what rank 0 has of parameters that are not cut, to be saved. */
    public void showReplicas() {
        synchronized (source) {
            if (!source.isEnded()) {
                names.keySet().forEach(this::copyBack);
            }
        }
    }

    /** Copies a replica of rank 0 back if it is not the model's own array. */
    void copyBack(Parameter parameter) {
        boolean there = isThere(parameter) && stores.get(0).contains(parameter);
        if (there && !shards.contains(parameter)) {
            NDArray value = stores.get(0).getHeld(parameter);
            NDArray array = parameter.getArray();
            if (value != array) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    assign(array, value);
                }
            }
        }
    }

    /** {@return the stores of the ranks of this process, in the order of the ranks} */
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
        return stores.get(context.getLocalIndex());
    }

    /**
     * {@return the name that a parameter has in the whole model}
     *
     * @param parameter the parameter
     */
    public String nameOf(Parameter parameter) {
        return names.getOrDefault(parameter, parameter.getName());
    }

    /**
     * {@return the parameter of a name that the ranks have values of, or {@code null}}
     *
     * @param name the name of the parameter
     */
    public @Nullable Parameter byName(String name) {
        return byName.get(name);
    }

    /** {@return all parameters, in the order of the block tree, each once} */
    public List<Parameter> getAll() {
        return all;
    }

    /** {@return the parameters that are trained, in the order of the block tree} */
    public List<Parameter> getTrained() {
        return all.stream().filter(Parameter::requiresGradient).toList();
    }

    /** Returns the parameters that have no gradient, in the order of the block tree. */
    List<Parameter> getUntrained() {
        return all.stream().filter(p -> !p.requiresGradient() && !shards.contains(p)).toList();
    }

    /**
     * Initializes what is not initialized of the model, as DJL does, but a parameter that is
     * sharded right in its shards.
     */
    private void initialize(DataType dataType, Shape... shapes) {
        Preconditions.checkArgument(
                dataType != DataType.BFLOAT16,
                "DJL has no arrays in bfloat16, and its native code would end the process: use"
                        + " model.setDataType(DataType.FLOAT32), and let layers multiply in"
                        + " bfloat16 with optPrecision(Precision.BFLOAT16)");
        Map<Parameter, Initializer> initializers = new IdentityHashMap<>();
        Map<Parameter, String> names = new IdentityHashMap<>();
        block.getParameters().forEach(named -> names.put(named.getValue(), named.getKey()));
        for (Parameter parameter : shards.parameters()) {
            if (!parameter.isInitialized()) {
                Initializer initializer = parameter.getInitializer();
                initializers.put(parameter, initializer);
                String name = names.getOrDefault(parameter, parameter.getName());
                parameter.setInitializer(
                        (scope, shape, type) ->
                                initializeShards(name, parameter, initializer, shape, type));
            }
        }
        try {
            block.initialize(modelManager, dataType, shapes);
            BlockWalk.of(block, (each, path, certain) -> prepare(each, dataType, shapes));
        } finally {
            initializers.forEach(Parameter::setInitializer);
        }
        if (contexts.get(0).getDataGroup().getSize() > 1) {
            warnOfRowMixing();
        }
    }

    /**
     * Gives every rank its shard of the values that the initializer gives the whole, which is there
     * for this one parameter only.
     */
    private NDArray initializeShards(
            String name, Parameter parameter, Initializer initializer, Shape shape, DataType type) {

        shards.of(parameter).checkSplit(name, shape, shards.size());
        if (initializer instanceof SlicedInitializer) {
            shards.fill(parameter, shape, type, (SlicedInitializer) initializer);
        } else {
            shards.create(parameter, shape, type);
            try (NDManager scope = modelManager.newSubManager()) {
                NDArray whole = initializer.initialize(scope, shape, type);
                noteDrawn(parameter, whole);
                shards.scatterRows(parameter, whole, 0, shape);
            }
        }
        return Placeholder.of(modelManager, shape, type);
    }

    /** Warns once, however many there are: a ResNet-20 has 21. */
    private void warnOfRowMixing() {
        List<String> paths = new ArrayList<>();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (each instanceof BatchNorm) {
                        paths.add(path);
                    }
                });
        if (paths.isEmpty()) {
            return;
        }
        logger.warn(
                "{}: where the batch is cut over the ranks, each batch normalization normalizes"
                        + " its own rows, and the step is not that of one device."
                        + " io.djltp.nn.SyncBatchNorm (in a plan, Style.batchNorm()) takes the"
                        + " statistics of all rows, and TENSOR mode has no such limit.",
                String.join(", ", paths));
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
     * Gives every rank of this process the model's values of a parameter. Rank 0 works on the
     * model's own array where that is on its device, the others on copies.
     */
    private void replicate(Parameter parameter) {
        NDArray array = parameter.getArray();
        boolean dense = TensorView.of(array).isContiguous(); // as updates need it: no transpose()
        for (int i = 0; i < stores.size(); i++) {
            RankParameterStore store = stores.get(i);
            boolean here = array.getDevice().equals(contexts.get(0).getDevice());
            boolean own = i == 0 && here;
            if (own && !(dense && ArrayMemory.isAligned(array))) {
                NDArray copy = copy(array, array.getManager()); // as those of the other ranks
                Placeholder.replace(parameter, copy);
            }
            NDArray value = own ? array : copy(array, store.getManager());
            if (own) {
                Autograd.zeroGradient(array); // of a trainer before, which a copy does not have
            }
            store.setValue(parameter, value);
        }
    }

    /**
     * Gives all ranks the values of the first that has the same part: another process may have
     * drawn or loaded others.
     */
    private void agree() {
        boolean overlaid = contexts.get(0).getMesh().isOverlaid();
        for (Parameter parameter : all) {
            boolean cut = shards.contains(parameter);
            if (!(cut && overlaid)) {
                ranks.runAll(
                        context -> {
                            // along which ranks have the same shard
                            Communicator group = cut ? context.getDataGroup() : context.getWorld();
                            group.setIssuer("the initialization of " + nameOf(parameter));
                            broadcast(group, getStore(context).getHeld(parameter));
                        });
            }
        }
    }

    private static void broadcast(Communicator group, NDArray replica) {
        if (replica.size() == 0) {
            return;
        }
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDArray values = Autograd.detach(replica, replica.getManager())) {
            if (values.getDataType().isFloating()) {
                group.broadcast(TensorView.of(values), 0).await();
            } else { // of bytes and booleans too, which groups do not take
                NDArray whole = values.toType(DataType.INT64, true);
                group.broadcast(TensorView.of(whole), 0).await();
                values.set(new NDIndex("..."), whole);
                whole.close();
            }
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
}
