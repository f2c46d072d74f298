package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.Objects;

/**
 * How a parameter is cut over the ranks: which axis, and which ranges of it make up a rank's shard.
 *
 * <p>The names are those of MAX, after the axis of the array. A linear layer keeps its weight as
 * [output features, input features], so that {@link #rowwise()} cuts the output features, which
 * Megatron-LM and PyTorch call column parallel, and {@link #columnwise()} cuts the input features,
 * which they call row parallel.
 *
 * <p>Ranges are balanced: lengths differ by at most one, see {@link Cut#balanced}. A strategy may
 * give a rank several ranges of the axis, one after another in its shard.
 */
public abstract class ShardingStrategy {

    private static final ShardingStrategy REPLICATE = new Replicate();

    /** Creates a strategy. */
    protected ShardingStrategy() {}

    /**
     * Returns the strategy that cuts axis 0.
     *
     * @return the strategy
     */
    public static ShardingStrategy rowwise() {
        return axiswise(0);
    }

    /**
     * Returns the strategy that cuts axis 1.
     *
     * @return the strategy
     */
    public static ShardingStrategy columnwise() {
        return axiswise(1);
    }

    /**
     * Returns the strategy that cuts one axis.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @return the strategy
     */
    public static ShardingStrategy axiswise(int axis) {
        return new Axiswise(axis);
    }

    /**
     * Returns the strategy that gives every rank the whole.
     *
     * @return the strategy
     */
    public static ShardingStrategy replicate() {
        return REPLICATE;
    }

    /**
     * Returns whether every rank has the whole.
     *
     * @return whether nothing is cut
     */
    public boolean isReplicated() {
        return false;
    }

    /**
     * Returns the axis that is cut.
     *
     * @param shape the shape of the whole
     * @return the axis, from 0
     * @throws IllegalArgumentException if the shape has no such axis
     */
    public abstract int axis(Shape shape);

    /**
     * Returns which ranges of the axis each rank holds.
     *
     * @param shape the shape of the whole
     * @param size the number of ranks
     * @return the cut of the axis
     */
    public abstract Cut cut(Shape shape, int size);

    /**
     * Returns the shape of a rank's shard.
     *
     * @param shape the shape of the whole
     * @param rank the rank
     * @param size the number of ranks
     * @return the shape of the shard
     */
    public Shape shardShape(Shape shape, int rank, int size) {
        long[] local = shape.getShape().clone();
        local[axis(shape)] = cut(shape, size).getShardLength(rank);
        return new Shape(local);
    }

    /**
     * Checks that every rank gets a part.
     *
     * @param name the name of the parameter, for the message
     * @param shape the shape of the whole
     * @param size the number of ranks
     * @throws IllegalArgumentException if a rank's shard would be empty
     */
    public void checkSplit(String name, Shape shape, int size) {
        int axis = axis(shape);
        for (int rank = 0; rank < size; rank++) {
            if (shardShape(shape, rank, size).size() == 0) {
                throw new IllegalArgumentException(
                        "Parameter "
                                + name
                                + " "
                                + shape
                                + " cannot be cut over "
                                + size
                                + " ranks: axis "
                                + axis
                                + " has length "
                                + shape.get(axis)
                                + " and leaves rank "
                                + rank
                                + " empty. Use at most "
                                + shape.get(axis)
                                + " ranks or a larger layer.");
            }
        }
    }

    /**
     * Copies the part of a rank's shard that lies in some rows of the whole.
     *
     * @param rows consecutive rows (indices of axis 0) of the whole
     * @param firstRow the first of them
     * @param whole the shape of the whole
     * @param shard the rank's shard, written in place
     * @param rank the rank
     * @param size the number of ranks
     */
    public void scatterRows(
            NDArray rows, long firstRow, Shape whole, NDArray shard, int rank, int size) {
        transfer(rows, firstRow, whole, shard, rank, size, true);
    }

    /**
     * Copies a rank's shard to its places in the whole.
     *
     * @param shard the rank's shard
     * @param whole the whole, written in place
     * @param rank the rank
     * @param size the number of ranks
     */
    public void gather(NDArray shard, NDArray whole, int rank, int size) {
        transfer(whole, 0, whole.getShape(), shard, rank, size, false);
    }

    private void transfer(
            NDArray rows,
            long firstRow,
            Shape whole,
            NDArray shard,
            int rank,
            int size,
            boolean toShard) {
        int axis = axis(whole);
        long endRow = firstRow + rows.getShape().get(0);
        long at = 0; // where the range lies in the shard
        for (ShardRange range : cut(whole, size).getRanges(rank)) {
            NDIndex inRows;
            NDIndex inShard;
            if (axis == 0) {
                long start = Math.max(range.start(), firstRow);
                long end = Math.min(range.end(), endRow);
                if (start < end) {
                    inRows = slice(0, start - firstRow, end - firstRow);
                    inShard = slice(0, at + start - range.start(), at + end - range.start());
                    copy(rows, inRows, shard, inShard, toShard);
                }
            } else {
                inRows = slice(axis, range.start(), range.end());
                inShard = slice(0, firstRow, endRow);
                for (int i = 1; i < axis; i++) {
                    inShard = inShard.addAllDim();
                }
                inShard = inShard.addSliceDim(at, at + range.length());
                copy(rows, inRows, shard, inShard, toShard);
            }
            at += range.length();
        }
    }

    private static void copy(
            NDArray rows, NDIndex inRows, NDArray shard, NDIndex inShard, boolean toShard) {
        NDArray target = toShard ? shard : rows;
        try (NDArray part = toShard ? rows.get(inRows) : shard.get(inShard);
                NDArray moved = part.toDevice(target.getDevice(), false)) {
            target.set(toShard ? inShard : inRows, moved);
        }
    }

    private static NDIndex slice(int axis, long start, long end) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index = index.addAllDim();
        }
        return index.addSliceDim(start, end);
    }

    /** One balanced range of one axis. */
    private static final class Axiswise extends ShardingStrategy {

        private final int axis;

        Axiswise(int axis) {
            this.axis = axis;
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            int dimensions = shape.dimension();
            int counted = axis < 0 ? axis + dimensions : axis;
            if (counted < 0 || counted >= dimensions) {
                throw new IllegalArgumentException("The shape " + shape + " has no axis " + axis);
            }
            return counted;
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            return Cut.balanced(shape.get(axis(shape)), size);
        }

        /** {@inheritDoc} */
        @Override
        public boolean equals(Object other) {
            return other instanceof Axiswise && ((Axiswise) other).axis == axis;
        }

        /** {@inheritDoc} */
        @Override
        public int hashCode() {
            return Objects.hash(axis);
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "axiswise(" + axis + ")";
        }
    }

    /** All of it. */
    private static final class Replicate extends ShardingStrategy {

        /** {@inheritDoc} */
        @Override
        public boolean isReplicated() {
            return true;
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return 0;
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            return Cut.replicated(shape.get(0), size);
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "replicate";
        }
    }
}
