package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Preconditions;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;

/**
 * Initializes what is not initialized of a model, as DJL does, but a parameter that is cut right in
 * its shards.
 */
final class ModelInitializer {

    private static final Logger logger = LoggerFactory.getLogger(ModelInitializer.class);

    private final Block block;
    private final NDManager manager;
    private final ParameterShards shards;
    private final BiConsumer<Parameter, NDArray> drawn;

    /** Creates the initializer, which tells what it draws for parameters that are cut. */
    ModelInitializer(
            Block block,
            NDManager manager,
            ParameterShards shards,
            BiConsumer<Parameter, NDArray> drawn) {
        this.block = block;
        this.manager = manager;
        this.shards = shards;
        this.drawn = drawn;
    }

    /** Initializes the model, whose batch may be cut over the ranks. */
    void run(boolean cutRows, DataType dataType, Shape... shapes) {
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
            block.initialize(manager, dataType, shapes);
            BlockWalk.of(block, (each, path, certain) -> prepare(each, dataType, shapes));
        } finally {
            initializers.forEach(Parameter::setInitializer);
        }
        if (cutRows) {
            warnOfRowMixing();
        }
    }

    /**
     * Gives every rank its shard of the values that the initializer gives the whole, which is there
     * for this one parameter only.
     */
    private NDArray initializeShards(
            String name, Parameter parameter, Initializer initializer, Shape shape, DataType type) {
        shards.strategyOf(parameter).checkSplit(name, shape, shards.size());
        if (initializer instanceof SlicedInitializer) {
            shards.fill(parameter, shape, type, (SlicedInitializer) initializer);
        } else {
            shards.create(parameter, shape, type);
            try (NDManager scope = manager.newSubManager()) {
                NDArray whole = initializer.initialize(scope, shape, type);
                drawn.accept(parameter, whole);
                shards.scatterRows(parameter, whole, 0, shape);
            }
        }
        return Placeholder.of(manager, shape, type);
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
                each.initialize(manager, dataType, shapes);
            } catch (RuntimeException e) {
                logger.debug("{} is initialized by its first pass", each, e);
            }
        }
    }
}
