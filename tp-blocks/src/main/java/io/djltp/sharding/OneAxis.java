package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import java.util.OptionalInt;

/** A strategy that cuts one axis, which may count from the last. */
abstract class OneAxis extends ShardingStrategy {

    final int axis;

    OneAxis(int axis) {
        this.axis = axis;
    }

    /** {@inheritDoc} */
    @Override
    public final OptionalInt shardedAxis() {
        return OptionalInt.of(axis);
    }

    /** {@inheritDoc} */
    @Override
    public final int axis(Shape shape) {
        int dimensions = shape.dimension();
        int counted = axis < 0 ? axis + dimensions : axis;
        if (counted < 0 || counted >= dimensions) {
            throw new IllegalArgumentException("The shape " + shape + " has no axis " + axis);
        }
        return counted;
    }
}
