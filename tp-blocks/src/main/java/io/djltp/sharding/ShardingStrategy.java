package io.djltp.sharding;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.List;
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
 */
public abstract class ShardingStrategy extends NamedStrategy {

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
        SplitCheck.check(this, name, shape, size);
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
        List<ShardRange> ranges = cut(whole, size).getRanges(rank);
        new ShardCopy(axis(whole), ranges).toRows(shard, rows, firstRow);
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

    /** Cuts an axis that is two halves, [gate; up]: each half into balanced ranges. */
    private static final class GateUp extends OneAxis {

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

    /** Stands for the strategies that a block of several weights chooses for each of them. */
    private static final class ResolvedByBlock extends ShardingStrategy {

        static final ShardingStrategy TENSOR =
                new ResolvedByBlock(StrategyKind.TENSOR_PARALLEL, "tensorParallel");
        static final ShardingStrategy EXPERT =
                new ResolvedByBlock(StrategyKind.EXPERT_PARALLEL, "expertParallel");

        private final StrategyKind kind;
        private final String name;

        private ResolvedByBlock(StrategyKind kind, String name) {
            this.kind = kind;
            this.name = name;
        }

        /** {@inheritDoc} */
        @Override
        StrategyKind kind() {
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
        StrategyKind kind() {
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
