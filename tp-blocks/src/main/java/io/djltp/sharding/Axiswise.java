package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import java.util.Objects;

/** Cuts one axis: into balanced ranges, or as it is told to. */
final class Axiswise extends OneAxis {

    private final Cut chosen; // or null: balanced

    Axiswise(int axis, Cut chosen) {
        super(axis);
        this.chosen = chosen;
    }

    /** {@inheritDoc} */
    @Override
    StrategyKind kind() {
        return axis == 0
                ? StrategyKind.ROWWISE
                : axis == 1 ? StrategyKind.COLUMNWISE : StrategyKind.OTHER;
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        int cutAxis = axis(shape);
        long length = shape.get(cutAxis);
        if (chosen == null) {
            return Cut.balanced(length, size);
        }
        SplitCheck.checkFits(this, chosen, length, cutAxis, size);
        return chosen;
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof Axiswise
                && ((Axiswise) other).axis == axis
                && Objects.equals(((Axiswise) other).chosen, chosen);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return Objects.hash(axis, chosen);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return "axiswise(" + axis + (chosen == null ? "" : ", " + chosen) + ")";
    }
}
