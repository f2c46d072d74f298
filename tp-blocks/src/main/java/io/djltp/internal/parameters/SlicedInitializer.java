package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.initializer.Initializer;

import io.djltp.cut.ShardRange;

import java.util.List;

/**
 * An initializer that can make a part of an array without the rest, such as one that reads a file.
 * A parameter that is cut over ranks is never whole then: each rank's shard is made by itself.
 */
public interface SlicedInitializer extends Initializer {

    /**
     * Makes a part of an array.
     *
     * @param manager the manager of the part, whose device it gets
     * @param shape the shape of the whole array
     * @param dataType the data type
     * @param axis an axis of the array
     * @param ranges ranges of this axis, in the order in which the part has them
     * @return the part: the shape of the whole, with the length of all ranges along the axis
     */
    NDArray initialize(
            NDManager manager, Shape shape, DataType dataType, int axis, List<ShardRange> ranges);

    /** {@inheritDoc} */
    @Override
    default NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        List<ShardRange> all = List.of(new ShardRange(0, shape.get(0)));
        return initialize(manager, shape, dataType, 0, all);
    }
}
