package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;

import java.util.List;
import java.util.Objects;

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
public interface ShardingStrategy {

    /**
     * Returns the strategy that cuts axis 0.
     *
     * @return the strategy
     */
    static ShardingStrategy rowwise() {
        return axiswise(0);
    }

    /**
     * Returns the strategy that cuts axis 1.
     *
     * @return the strategy
     */
    static ShardingStrategy columnwise() {
        return axiswise(1);
    }

    /**
     * Returns the strategy that cuts one axis.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @return the strategy
     */
    static ShardingStrategy axiswise(int axis) {
        return new Strategies.Axiswise(axis, null);
    }

    /**
     * Returns the strategy that cuts axis 0 as it is told to.
     *
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    static ShardingStrategy rowwise(Cut cut) {
        return axiswise(0, cut);
    }

    /**
     * Returns the strategy that cuts axis 1 as it is told to.
     *
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    static ShardingStrategy columnwise(Cut cut) {
        return axiswise(1, cut);
    }

    /**
     * Returns the strategy that cuts one axis as it is told to.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @param cut which ranges of the axis each rank gets, such as {@code Cut.ofLengths(5, 3)}
     * @return the strategy, for one number of ranks and one length of the axis
     */
    static ShardingStrategy axiswise(int axis, Cut cut) {
        return new Strategies.Axiswise(axis, Objects.requireNonNull(cut, "cut"));
    }

    /**
     * Returns the strategy of the stacked rows [gate; up] of a gated MLP: axis 0 of a weight [2
     * hidden, in], as a linear layer of DJL has it. (MAX's default is axis 2, that of its experts.)
     *
     * @return the strategy
     */
    static ShardingStrategy gateUp() {
        return gateUp(0);
    }

    /**
     * Returns the strategy of an axis that is two halves, [gate; up]: a rank's shard is its
     * balanced range of the gate, then the same of the up projection.
     *
     * @param axis the axis, of even length; a negative one counts from the last, -1
     * @return the strategy
     */
    static ShardingStrategy gateUp(int axis) {
        return new Strategies.GateUp(axis);
    }

    /**
     * Returns the strategy of the stacked rows [q; k; v] of attention: axis 0 of a weight [3
     * numHeads headDim, in]. A rank's shard is its heads of q, then of k, then of v.
     *
     * @param numHeads the number of heads, which need not be divisible by that of the ranks
     * @param headDim the features of a head
     * @return the strategy
     */
    static ShardingStrategy stackedQkv(int numHeads, long headDim) {
        return stackedQkv(numHeads, numHeads, headDim);
    }

    /**
     * Returns the strategy of the stacked rows [q; k; v] of grouped-query attention: axis 0 of a
     * weight [(numHeads + 2 numKeyValueHeads) headDim, in].
     *
     * @param numHeads the number of query heads
     * @param numKeyValueHeads the number of key/value heads; a rank has those that its query heads
     *     use, see {@link AxisPart}
     * @param headDim the features of a head
     * @return the strategy
     */
    static ShardingStrategy stackedQkv(int numHeads, int numKeyValueHeads, long headDim) {
        AxisPart keys = AxisPart.keyValueHeads(numHeads, numKeyValueHeads, headDim);
        return segmented(0, AxisPart.heads(numHeads, headDim), keys, keys);
    }

    /**
     * Returns the strategy that cuts axis 1 by heads: of the output projection of attention, [out,
     * numHeads headDim], whose columns are the heads that a rank has of the query.
     *
     * @param numHeads the number of query heads
     * @param headDim the features of a head
     * @return the strategy
     */
    static ShardingStrategy headAwareColumnwise(int numHeads, long headDim) {
        return segmented(1, AxisPart.heads(numHeads, headDim));
    }

    /**
     * Returns the strategy that cuts axis 0 by heads: of the query projection of attention,
     * [numHeads headDim, in].
     *
     * @param numHeads the number of query heads
     * @param headDim the features of a head
     * @return the strategy
     */
    static ShardingStrategy headAwareRowwise(int numHeads, long headDim) {
        return segmented(0, AxisPart.heads(numHeads, headDim));
    }

    /**
     * Returns the strategy that cuts axis 0 by the heads of keys or values, [numKeyValueHeads
     * headDim, in]: each is on every rank that has a query head that uses it.
     *
     * @param numHeads the number of query heads
     * @param numKeyValueHeads the number of key/value heads
     * @param headDim the features of a head
     * @return the strategy
     */
    static ShardingStrategy keyValueRowwise(int numHeads, int numKeyValueHeads, long headDim) {
        return segmented(0, AxisPart.keyValueHeads(numHeads, numKeyValueHeads, headDim));
    }

    /**
     * Returns the strategy of an axis of several parts, each cut by itself.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @param parts the parts, which together are the axis
     * @return the strategy, whose shards are a rank's share of each part, one after another
     */
    static ShardingStrategy segmented(int axis, AxisPart... parts) {
        return new Strategies.Segmented(axis, List.of(parts));
    }

    /**
     * Returns what stands for the strategies that a block of several weights chooses for each.
     *
     * @return the strategy, which has no cut of its own
     */
    static ShardingStrategy tensorParallel() {
        return Strategies.OfBlock.TENSOR;
    }

    /**
     * Returns what stands for the experts of a block that are divided over the ranks.
     *
     * @return the strategy, which has no cut of its own
     */
    static ShardingStrategy expertParallel() {
        return Strategies.OfBlock.EXPERT;
    }

    /**
     * Returns a strategy that cuts as another one, and is refused where that gives ranks the same.
     *
     * @param strategy the strategy
     * @return the strategy, for what must be on one rank only
     */
    static ShardingStrategy withoutReplicas(ShardingStrategy strategy) {
        return new Strategies.WithoutReplicas(strategy);
    }

    /**
     * Returns the strategy that gives every rank the whole.
     *
     * @return the strategy
     */
    static ShardingStrategy replicate() {
        return new Strategies.Replicate();
    }

    /**
     * Returns the axis that is cut.
     *
     * @param shape the shape of the whole
     * @return the axis, from 0
     * @throws IllegalArgumentException if the shape has no such axis
     */
    int axis(Shape shape);

    /**
     * Returns which ranges of the axis each rank holds.
     *
     * @param shape the shape of the whole
     * @param size the number of ranks
     * @return the cut of the axis
     * @throws IllegalArgumentException if the strategy is not one for this shape, or for so many
     *     ranks
     */
    Cut cut(Shape shape, int size);

    /**
     * Returns the shape of a rank's shard.
     *
     * @param shape the shape of the whole
     * @param rank the rank
     * @param size the number of ranks
     * @return the shape of the shard
     */
    default Shape shardShape(Shape shape, int rank, int size) {
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
    default void checkSplit(String name, Shape shape, int size) {
        String parameter = "Parameter " + name + " " + shape + " cannot be cut over ";
        int axis;
        Cut cut;
        try {
            axis = axis(shape);
            cut = cut(shape, size);
            Strategies.checkFits(this, cut, shape.get(axis), axis, size);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(parameter + size + " ranks: " + e.getMessage(), e);
        }
        for (int rank = 0; rank < size; rank++) {
            if (cut.getShardLength(rank) == 0 || shape.size() == 0) {
                long length = shape.get(axis);
                String most = "Use at most %s %s or a larger layer.";
                throw Errors.argument(
                        "%s%s ranks: axis %s has length %s and leaves rank %s empty. %s",
                        parameter,
                        size,
                        axis,
                        length,
                        rank,
                        length < size
                                ? String.format(most, length, length == 1 ? "rank" : "ranks")
                                : "Give every rank one or more.");
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
    default void scatterRows(
            NDArray rows, long firstRow, Shape whole, NDArray shard, int rank, int size) {
        transfer(rows, firstRow, whole, shard, rank, size, true);
    }

    /**
     * Copies the part of a rank's shard that lies in some rows of the whole to its places there.
     *
     * @param shard the rank's shard
     * @param rows consecutive rows (indices of axis 0) of the whole, written in place
     * @param firstRow the first of them
     * @param whole the shape of the whole
     * @param rank the rank
     * @param size the number of ranks
     */
    default void gatherRows(
            NDArray shard, NDArray rows, long firstRow, Shape whole, int rank, int size) {
        transfer(rows, firstRow, whole, shard, rank, size, false);
    }

    /**
     * Copies a rank's shard to its places in the whole.
     *
     * @param shard the rank's shard
     * @param whole the whole, written in place
     * @param rank the rank
     * @param size the number of ranks
     */
    default void gather(NDArray shard, NDArray whole, int rank, int size) {
        gatherRows(shard, whole, 0, whole.getShape(), rank, size);
    }

    /**
     * Returns whether every rank has the whole.
     *
     * @return whether nothing is cut
     */
    default boolean isReplicated() {
        return equals(replicate());
    }

    /**
     * Returns whether a block chooses the strategies of its weights.
     *
     * @return whether it is {@link #tensorParallel()}
     */
    default boolean isTensorParallel() {
        return equals(tensorParallel());
    }

    /**
     * Returns whether a block divides its experts over the ranks.
     *
     * @return whether it is {@link #expertParallel()}
     */
    default boolean isExpertParallel() {
        return equals(expertParallel());
    }

    /** Copies, across devices, what lies in some rows of the whole to or from a rank's shard. */
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
            if (axis == 0) {
                long start = Math.max(range.start(), firstRow);
                long end = Math.min(range.end(), endRow);
                if (start < end) {
                    NDIndex inRows = slice(0, start - firstRow, end - firstRow);
                    NDIndex inShard =
                            slice(0, at + start - range.start(), at + end - range.start());
                    copy(rows, inRows, shard, inShard, toShard);
                }
            } else {
                NDIndex inRows = slice(axis, range.start(), range.end());
                NDIndex inShard = slice(0, firstRow, endRow);
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
}
