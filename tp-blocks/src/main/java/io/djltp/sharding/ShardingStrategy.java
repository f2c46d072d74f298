package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.List;
import java.util.Objects;
import java.util.OptionalInt;

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
 * The questions for their kind have the names of MAX ({@code is_rowwise} is {@link #isRowwise()}).
 * Strategies that do the same are of the same kind, however they were made: {@code axiswise(0)} is
 * row-wise.
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
     * Returns the strategy of the stacked rows [gate; up] of a gated MLP: axis 0 of a weight [2
     * hidden, in], as a linear layer of DJL has it. (MAX's default is axis 2, that of its experts.)
     *
     * @return the strategy
     */
    public static ShardingStrategy gateUp() {
        return gateUp(0);
    }

    /**
     * Returns the strategy of an axis that is two halves, [gate; up]: a rank's shard is its
     * balanced range of the gate, then the same of the up projection.
     *
     * @param axis the axis, of even length; a negative one counts from the last, -1
     * @return the strategy
     */
    public static ShardingStrategy gateUp(int axis) {
        return new GateUp(axis);
    }

    /**
     * Returns the strategy of the stacked rows [q; k; v] of attention: axis 0 of a weight [3
     * numHeads headDim, in]. A rank's shard is its heads of q, then of k, then of v.
     *
     * @param numHeads the number of heads, which need not be divisible by that of the ranks
     * @param headDim the features of a head
     * @return the strategy
     */
    public static ShardingStrategy stackedQkv(int numHeads, long headDim) {
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
    public static ShardingStrategy stackedQkv(int numHeads, int numKeyValueHeads, long headDim) {
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
    public static ShardingStrategy headAwareColumnwise(int numHeads, long headDim) {
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
    public static ShardingStrategy headAwareRowwise(int numHeads, long headDim) {
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
    public static ShardingStrategy keyValueRowwise(
            int numHeads, int numKeyValueHeads, long headDim) {
        return segmented(0, AxisPart.keyValueHeads(numHeads, numKeyValueHeads, headDim));
    }

    /**
     * Returns the strategy of an axis of several parts, each cut by itself.
     *
     * @param axis the axis; a negative one counts from the last, -1
     * @param parts the parts, which together are the axis
     * @return the strategy, whose shards are a rank's share of each part, one after another
     */
    public static ShardingStrategy segmented(int axis, AxisPart... parts) {
        return new Segmented(axis, List.of(parts));
    }

    /**
     * Returns what stands for the strategies that a block of several weights chooses for each.
     *
     * @return the strategy, which has no cut of its own
     */
    public static ShardingStrategy tensorParallel() {
        return ResolvedByBlock.TENSOR;
    }

    /**
     * Returns what stands for the experts of a block that are divided over the ranks.
     *
     * @return the strategy, which has no cut of its own
     */
    public static ShardingStrategy expertParallel() {
        return ResolvedByBlock.EXPERT;
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
            checkFits(cut, shape.get(axis), axis, size);
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
                                                + (shape.get(axis) == 1 ? " rank" : " ranks")
                                                + " or a larger layer."
                                        : "Give every rank one or more."));
            }
        }
    }

    /** Checks that a cut is one of an axis and of a group. */
    final void checkFits(Cut cut, long length, int axis, int size) {
        if (cut.getRanks() != size) {
            throw new IllegalArgumentException(
                    "the strategy "
                            + this
                            + " is one for "
                            + cut.getRanks()
                            + " ranks, not for "
                            + size);
        }
        if (cut.getLength() != length) {
            throw new IllegalArgumentException(
                    "the strategy "
                            + this
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
    public void gatherRows(
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
    public void gather(NDArray shard, NDArray whole, int rank, int size) {
        gatherRows(shard, whole, 0, whole.getShape(), rank, size);
    }

    /** Returns the kind. */
    Kind kind() {
        return Kind.OTHER;
    }

    /**
     * Returns the axis that is cut, as it was given: a negative one counts from the last.
     *
     * @return the axis, or none where nothing is cut, or a block resolves the strategy
     */
    public OptionalInt shardedAxis() {
        return OptionalInt.empty();
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
     * Returns whether axis 0 is cut as one range a rank.
     *
     * @return whether it is {@link #rowwise()}
     */
    public final boolean isRowwise() {
        return kind() == Kind.ROWWISE;
    }

    /**
     * Returns whether axis 1 is cut as one range a rank.
     *
     * @return whether it is {@link #columnwise()}
     */
    public final boolean isColwise() {
        return kind() == Kind.COLUMNWISE;
    }

    /**
     * Returns whether each rank has a part of two halves.
     *
     * @return whether it is {@link #gateUp()}, of any axis
     */
    public final boolean isGateUp() {
        return kind() == Kind.GATE_UP;
    }

    /**
     * Returns whether each rank has its heads of stacked queries, keys and values.
     *
     * @return whether it is {@link #stackedQkv(int, long)}
     */
    public final boolean isStackedQkv() {
        return kind() == Kind.STACKED_QKV;
    }

    /**
     * Returns whether axis 1 is cut by heads.
     *
     * @return whether it is {@link #headAwareColumnwise(int, long)}
     */
    public final boolean isHeadAwareColwise() {
        return kind() == Kind.HEAD_AWARE_COLUMNWISE;
    }

    /**
     * Returns whether axis 0 is cut by heads.
     *
     * @return whether it is {@link #headAwareRowwise(int, long)}, or that of keys and values
     */
    public final boolean isHeadAwareRowwise() {
        return kind() == Kind.HEAD_AWARE_ROWWISE;
    }

    /**
     * Returns whether a block chooses the strategies of its weights.
     *
     * @return whether it is {@link #tensorParallel()}
     */
    public final boolean isTensorParallel() {
        return kind() == Kind.TENSOR_PARALLEL;
    }

    /**
     * Returns whether a block divides its experts over the ranks.
     *
     * @return whether it is {@link #expertParallel()}
     */
    public final boolean isExpertParallel() {
        return kind() == Kind.EXPERT_PARALLEL;
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

    /** The kinds of strategies that have a name of their own. */
    enum Kind {
        ROWWISE,
        COLUMNWISE,
        GATE_UP,
        STACKED_QKV,
        HEAD_AWARE_COLUMNWISE,
        HEAD_AWARE_ROWWISE,
        TENSOR_PARALLEL,
        EXPERT_PARALLEL,
        OTHER
    }

    /** A strategy that cuts one axis, which may count from the last. */
    abstract static class OneAxis extends ShardingStrategy {

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

    /** Cuts one axis: into balanced ranges, or as it is told to. */
    private static final class Axiswise extends OneAxis {

        private final Cut chosen; // or null: balanced

        Axiswise(int axis, Cut chosen) {
            super(axis);
            this.chosen = chosen;
        }

        /** {@inheritDoc} */
        @Override
        Kind kind() {
            return axis == 0 ? Kind.ROWWISE : axis == 1 ? Kind.COLUMNWISE : Kind.OTHER;
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            int cutAxis = axis(shape);
            long length = shape.get(cutAxis);
            if (chosen == null) {
                return Cut.balanced(length, size);
            }
            checkFits(chosen, length, cutAxis, size);
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

    /** Gives every rank all of it. */
    private static final class Replicate extends ShardingStrategy {

        static final ShardingStrategy INSTANCE = new Replicate();

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

    /** Cuts an axis that is two halves, [gate; up]: each half into balanced ranges. */
    private static final class GateUp extends OneAxis {

        GateUp(int axis) {
            super(axis);
        }

        /** {@inheritDoc} */
        @Override
        Kind kind() {
            return Kind.GATE_UP;
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

    /** Stands for the strategies that a block of several weights chooses for each of them. */
    private static final class ResolvedByBlock extends ShardingStrategy {

        static final ShardingStrategy TENSOR =
                new ResolvedByBlock(Kind.TENSOR_PARALLEL, "tensorParallel");
        static final ShardingStrategy EXPERT =
                new ResolvedByBlock(Kind.EXPERT_PARALLEL, "expertParallel");

        private final Kind kind;
        private final String name;

        private ResolvedByBlock(Kind kind, String name) {
            this.kind = kind;
            this.name = name;
        }

        /** {@inheritDoc} */
        @Override
        Kind kind() {
            return kind;
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            throw refusal(shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            throw refusal(shape);
        }

        private IllegalArgumentException refusal(Shape shape) {
            return new IllegalArgumentException(
                    "The strategy "
                            + name
                            + " stands for those that a block of several weights chooses for each of"
                            + " them, and has no cut of its own for a weight "
                            + shape
                            + ": give it to such a block, or a weight a strategy that cuts an axis,"
                            + " such as rowwise()");
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return name;
        }
    }

    /** Cuts as another strategy, but refuses that several ranks get the same. */
    private static final class WithoutReplicas extends ShardingStrategy {

        private final ShardingStrategy strategy;

        WithoutReplicas(ShardingStrategy strategy) {
            this.strategy = strategy;
        }

        /** {@inheritDoc} */
        @Override
        Kind kind() {
            return strategy.kind();
        }

        /** {@inheritDoc} */
        @Override
        public OptionalInt shardedAxis() {
            return strategy.shardedAxis();
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return strategy.axis(shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            Cut cut = strategy.cut(shape, size);
            if (!cut.isPartition()) {
                throw new IllegalArgumentException(
                        "the strategy "
                                + strategy
                                + " gives several ranks the same, which would count as often in what"
                                + " is summed over the ranks. Give each element to one rank");
            }
            return cut;
        }

        /** {@inheritDoc} */
        @Override
        public boolean equals(Object other) {
            return other instanceof WithoutReplicas
                    && ((WithoutReplicas) other).strategy.equals(strategy);
        }

        /** {@inheritDoc} */
        @Override
        public int hashCode() {
            return 31 * strategy.hashCode();
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return strategy.toString();
        }
    }
}
