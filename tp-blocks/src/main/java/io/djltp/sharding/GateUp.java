package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import java.util.List;

/** Cuts an axis that is two halves, [gate; up]: each half into balanced ranges. */
final class GateUp extends OneAxis {

    GateUp(int axis) {
        super(axis);
    }

    /** {@inheritDoc} */
    @Override
    StrategyKind kind() {
        return StrategyKind.GATE_UP;
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        int cutAxis = axis(shape);
        long length = shape.get(cutAxis);
        if (length % 2 != 0) {
            throw new IllegalArgumentException(
                    "gate and up are the two halves of axis "
                            + cutAxis
                            + ", whose length "
                            + length
                            + " is odd. Give twice as many units as the hidden layer has features");
        }
        if (length < 2L * size) {
            throw new IllegalArgumentException(
                    "gate and up have "
                            + length / 2
                            + " features each, for "
                            + size
                            + " ranks. Use at most "
                            + length / 2
                            + (length / 2 == 1 ? " rank" : " ranks")
                            + " or a larger layer");
        }
        AxisPart half = AxisPart.even(length / 2);
        return Segmented.stack(List.of(half, half), length, size);
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof GateUp && ((GateUp) other).axis == axis;
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return 37 + axis;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "gateUp(" + axis + ")";
    }
}
