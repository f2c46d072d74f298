package io.djltp.parameters;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.recurrent.RecurrentBlock;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Preconditions;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/**
 * Initializes what is not initialized of a model, as DJL does, but a parameter that is cut right in
 * its shards.
 */
final class ModelInitializer {

    private static final Logger logger = LoggerFactory.getLogger(ModelInitializer.class);

    private final Block block;
    private final NDManager manager;
    private final ParameterShards shards;
    private final InitialValues drawn;

    ModelInitializer(Block block, NDManager manager, ParameterShards shards, InitialValues drawn) {
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
                parameter.setInitializer(
                        new ShardedInitializer(
                                initializer,
                                names.getOrDefault(parameter, parameter.getName()),
                                parameter,
                                shards,
                                drawn,
                                manager));
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
            warnOfTime();
        }
    }

    private List<String> pathsOf(Predicate<Block> wanted) {
        List<String> paths = new ArrayList<>();
        BlockWalk.of(
                block,
                (each, path, certain) -> {
                    if (wanted.test(each)) {
                        paths.add(path);
                    }
                });
        return paths;
    }

    /** Warns once, however many there are: a ResNet-20 has 21. */
    private void warnOfRowMixing() {
        List<String> paths = pathsOf(each -> each instanceof BatchNorm);
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

    private void warnOfTime() {
        List<String> paths =
                pathsOf(
                        each ->
                                each instanceof RecurrentBlock
                                        && TimeMajor.is((RecurrentBlock) each, manager));
        if (paths.isEmpty()) {
            return;
        }
        logger.warn(
                "{}: optBatchFirst(false) takes axis 0 for the time. Where axis 0 is the batch that"
                        + " is cut over the ranks, each rank computes a time of its own, and the"
                        + " step is not that of one device. Use optBatchFirst(true), or TENSOR"
                        + " mode.",
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
