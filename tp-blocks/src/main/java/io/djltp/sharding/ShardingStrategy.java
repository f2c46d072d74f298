package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.List;

/**
 * How a parameter is cut over the ranks: which axis, and which ranges of it make up a rank's shard.
 *
 * <p>The names are those of MAX, after the axis of the array. A linear layer keeps its weight as
 * [output features, input features], so that {@link #rowwise()} cuts the output features, which
 * Megatron-LM and PyTorch call column parallel, and {@link #columnwise()} cuts the input features,
 * which they call row parallel.
 *
 * <p>Unless a cut is given, ranges are balanced: lengths differ by at most one, see {@link
 * Cut#balanced}. A strategy may give a rank several ranges of the axis, one after another in its
 * shard, and several ranks the same range, which then are replicas of each other.
 *
 * <p>Strategies are compared by what they do: blocks that share a parameter must have equal ones.
 */
public abstract class ShardingStrategy {

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
        return new Axiswise(axis, null);
    }

    /**
     * Returns the strategy that cuts axis 0 as it is told to.
     *
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    public static ShardingStrategy rowwise(Cut cut) {
        return axiswise(0, cut);
    }

    /**
     * Returns the strategy that cuts axis 1 as it is told to.
     *
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    public static ShardingStrategy columnwise(Cut cut) {
        return axiswise(1, cut);
    }

    /**
     * Returns the strategy that cuts one axis as it is told to.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    public static ShardingStrategy axiswise(int axis, Cut cut) {
        return new Axiswise(axis, cut);
    }

    /**
     * Returns a strategy that cuts as another one, and is refused where that gives ranks the same.
     *
     * @param strategy the strategy
     * @return the strategy, for what must be on one rank only
     */
    public static ShardingStrategy withoutReplicas(ShardingStrategy strategy) {
        return new WithoutReplicas(strategy);
    }

    /**
     * Returns the strategy that gives every rank the whole.
     *
     * @return the strategy
     */
    public static ShardingStrategy replicate() {
        return Replicate.INSTANCE;
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
     * @throws IllegalArgumentException if the strategy is not one for this shape, or for so many
     *     ranks
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
     * Checks that the parameter can be cut, and that every rank gets a part.
     *
     * @param name the name of the parameter, for the message
     * @param shape the shape of the whole
     * @param size the number of ranks
     * @throws IllegalArgumentException if a rank's shard would be empty, or the strategy does not
     *     fit the shape or the number of ranks
     */
    public void checkSplit(String name, Shape shape, int size) {
        String parameter = "Parameter " + name + " " + shape + " cannot be cut over ";
        int axis;
        Cut cut;
        try {
            axis = axis(shape);
            cut = cut(shape, size);
            checkFits(this, cut, shape.get(axis), axis, size);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(parameter + size + " ranks: " + e.getMessage(), e);
        }
        for (int rank = 0; rank < size; rank++) {
            if (cut.getShardLength(rank) == 0 || shape.size() == 0) {
                throw new IllegalArgumentException(
                        parameter
                                + size
                                + " ranks: axis "
                                + axis
                                + " has length "
                                + shape.get(axis)
                                + " and leaves rank "
                                + rank
                                + " empty. "
                                + (shape.get(axis) < size
                                        ? "Use at most "
                                                + shape.get(axis)
                                                + " ranks or a larger layer."
                                        : "Give every rank one or more."));
            }
        }
    }

    /** Checks that a cut is one of an axis and of a group. */
    static void checkFits(ShardingStrategy strategy, Cut cut, long length, int axis, int size) {
        if (cut.getRanks() != size) {
            throw new IllegalArgumentException(
                    "the strategy "
                            + strategy
                            + " is one for "
                            + cut.getRanks()
                            + " ranks, not for "
                            + size);
        }
        if (cut.getLength() != length) {
            throw new IllegalArgumentException(
                    "the strategy "
                            + strategy
                            + " cuts "
                            + cut.getLength()
                            + " elements, and axis "
                            + axis
                            + " has "
                            + length);
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
        List<ShardRange> ranges = cut(whole, size).getRanges(rank);
        new ShardCopy(axis(whole), ranges).toShard(rows, firstRow, shard);
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
        List<ShardRange> ranges = cut(whole.getShape(), size).getRanges(rank);
        new ShardCopy(axis(whole.getShape()), ranges).toWhole(shard, whole);
    }
}
