package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;

import io.djltp.sharding.ShardingStrategy;

/**
 * Initializes the shards of a parameter with the values that its initializer would give to the
 * whole, bit for bit, where it can be without ever holding the whole.
 *
 * <p>Where an initializer asks for one fill and returns it, as most of DJL's do, that is made in
 * blocks of rows: libtorch's CPU generator draws in the order of the elements, and its normal
 * distribution in groups of 16 with a tail of its own, so that blocks of a multiple of 16 elements,
 * the tail in the last, are the same as one large draw. What any other initializer returns is cut.
 */
final class ShardedInitializer implements Initializer {

    /** Elements of a block: 16 MiB of float32. */
    private static final long BLOCK = 1 << 22;

    private static final long GROUP = 16;

    private final Initializer initializer;
    private final String name;
    private final Parameter parameter;
    private final ParameterShards shards;
    private final InitialValues drawn;
    private final NDManager modelManager;

    ShardedInitializer(
            Initializer initializer,
            String name,
            Parameter parameter,
            ParameterShards shards,
            InitialValues drawn,
            NDManager modelManager) {
        this.initializer = initializer;
        this.name = name;
        this.parameter = parameter;
        this.shards = shards;
        this.drawn = drawn;
        this.modelManager = modelManager;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        ShardingStrategy strategy = shards.strategyOf(parameter);
        strategy.checkSplit(name, shape, shards.size());
        NDArray placeholder = Placeholder.of(modelManager, shape, dataType);
        if (initializer instanceof SlicedInitializer) {
            shards.fill(parameter, shape, dataType, (SlicedInitializer) initializer);
            return placeholder;
        }
        shards.create(parameter, shape, dataType);
        try (NDManager scope = manager.newSubManager();
                DeferredFill fill = new DeferredFill(scope, shape)) {
            NDArray whole = fill.run(initializer, dataType);
            if (whole == null) {
                fillBlocks(fill, shape, manager.getDevice().isGpu());
            } else {
                drawn.add(parameter, whole);
                shards.scatterRows(parameter, whole, 0, shape);
            }
        }
        return placeholder;
    }

    private void fillBlocks(DeferredFill fill, Shape shape, boolean read) {
        if (!read) { // the generator of the CPU tells as much
            drawn.add(parameter, fill.fingerprint());
        }
        long rows = shape.get(0);
        long rowSize = shape.size() / rows;
        long step = Math.max(GROUP, BLOCK / rowSize / GROUP * GROUP);
        for (long first = 0; first < rows; ) {
            long left = rows - first;
            // a last block of fewer than 16 elements would draw its tail alone
            long count = left < step + GROUP ? left : step;
            long[] block = shape.getShape().clone();
            block[0] = count;
            try (NDArray values = fill.replay(new Shape(block))) {
                if (read) {
                    drawn.add(parameter, values);
                }
                shards.scatterRows(parameter, values, first, shape);
            }
            first += count;
        }
    }
}
