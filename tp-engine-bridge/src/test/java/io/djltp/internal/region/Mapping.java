package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;

import java.util.List;

/**
 * Every mapping, and what it must do, worked out by libtorch's autograd on one rank that has the
 * arrays of all. Each has an input and an output that are whole, or this rank's slice of an axis.
 */
enum Mapping {
    COPY("whole", "whole", -1, 0, 1),
    REDUCE("whole", "whole", -1, 1, 0),
    GATHER("slice", "whole", -1, 1, 0),
    SCATTER("whole", "slice", -1, 0, 1),
    GATHER_ROWS("slice", "whole", 0, 1, 0),
    GATHER_ROWS_PARTIAL("slice", "whole", 0, 1, 1),
    SCATTER_ROWS("whole", "slice", 0, 0, 1),
    REDUCE_SCATTER_ROWS("whole", "slice", 0, 1, 1),
    GATHER_TOKENS("slice", "whole", 1, 1, 0),
    GATHER_TOKENS_PARTIAL("slice", "whole", 1, 1, 1),
    SCATTER_TOKENS("whole", "slice", 1, 0, 1),
    REDUCE_SCATTER_TOKENS("whole", "slice", 1, 1, 1);

    /** How many collectives the passes take. */
    final int forwardCalls;

    final int backwardCalls;

    private final boolean slicedInput;
    private final boolean slicedOutput;
    private final int axis;

    Mapping(String input, String output, int axis, int forwardCalls, int backwardCalls) {
        slicedInput = input.equals("slice");
        slicedOutput = output.equals("slice");
        this.axis = axis;
        this.forwardCalls = forwardCalls;
        this.backwardCalls = backwardCalls;
    }

    /** What one rank does with its mappings. */
    interface Body {
        void run(RegionMappings mappings, NDManager manager, Communicator group) throws Exception;
    }

    /** Runs all ranks of a new group, each with mappings of its own. */
    static void run(int size, Body body) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    try (RegionMappings mappings = new RegionMappings(communicator)) {
                        body.run(mappings, manager, communicator);
                    }
                });
    }

    /** Applies the mapping to what the rank has of a whole whose axis is cut so. */
    NDArray apply(RegionMappings mappings, NDArray x, Cut cut) {
        return switch (this) {
            case COPY -> mappings.copyToRegion(x);
            case REDUCE -> mappings.reduceFromRegion(x);
            case GATHER -> mappings.gatherFromRegion(x, cut);
            case SCATTER -> mappings.scatterToRegion(x, cut);
            case GATHER_ROWS -> mappings.gatherFromSequenceRegion(x, cut, false);
            case GATHER_ROWS_PARTIAL -> mappings.gatherFromSequenceRegion(x, cut, true);
            case SCATTER_ROWS -> mappings.scatterToSequenceRegion(x, cut);
            case REDUCE_SCATTER_ROWS -> mappings.reduceScatterToSequenceRegion(x, cut);
            case GATHER_TOKENS -> mappings.gatherFromSequenceRegion(x, cut, 1, false);
            case GATHER_TOKENS_PARTIAL -> mappings.gatherFromSequenceRegion(x, cut, 1, true);
            case SCATTER_TOKENS -> mappings.scatterToSequenceRegion(x, cut, 1);
            case REDUCE_SCATTER_TOKENS -> mappings.reduceScatterToSequenceRegion(x, cut, 1);
        };
    }

    /** Returns the output of a rank, given the inputs of all. */
    NDArray serial(List<NDArray> inputs, int rank, Cut cut) {
        NDList parts = new NDList();
        if (slicedInput) {
            for (Segment segment : cut.getSegments()) {
                int first = segment.getFirstRank();
                long place = segment.getPlace(first);
                parts.add(part(inputs.get(first), place, segment.range().length()));
            }
        } else {
            NDArray whole = name().startsWith("REDUCE") ? sum(inputs) : inputs.get(rank);
            if (!slicedOutput) {
                return whole;
            }
            for (ShardRange range : cut.getRanges(rank)) {
                parts.add(part(whole, range.start(), range.length()));
            }
        }
        int dimension = axis(parts.head().getShape());
        return parts.size() == 1 ? parts.head() : NDArrays.concat(parts, dimension);
    }

    private NDArray part(NDArray array, long start, long length) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis(array.getShape()); i++) {
            index.addAllDim();
        }
        return array.get(index.addSliceDim(start, start + length));
    }

    static NDArray sum(List<NDArray> arrays) {
        NDArray sum = arrays.get(0);
        for (NDArray array : arrays.subList(1, arrays.size())) {
            sum = sum.add(array);
        }
        return sum;
    }

    /** Returns whether an input is replicated: the same leaf on all ranks. */
    boolean isReplicated() {
        return this == COPY || name().startsWith("SCATTER");
    }

    /**
     * Returns whether a rank's gradient of its input depends on the other ranks' outputs: on all
     * that are summands of one loss. A gather for replicated consumers has the whole gradient.
     */
    boolean sums() {
        return backwardCalls > 0;
    }

    Shape inputShape(Shape whole, Cut cut, int rank) {
        return slicedInput ? slice(whole, cut, rank) : whole;
    }

    Shape outputShape(Shape whole, Cut cut, int rank) {
        return slicedOutput ? slice(whole, cut, rank) : whole;
    }

    private Shape slice(Shape whole, Cut cut, int rank) {
        long[] sizes = whole.getShape().clone();
        sizes[axis(whole)] = cut.getShardLength(rank);
        return new Shape(sizes);
    }

    /** Returns the number of the axis that is cut, or one that is not there. */
    int axis(Shape whole) {
        return axis < 0 ? whole.dimension() - 1 : axis;
    }

    /** Returns the shape of a whole of some axes and one that is cut. */
    Shape whole(Shape others, long length) {
        int place = axis < 0 ? others.dimension() : axis;
        return others.slice(0, place).add(length).addAll(others.slice(place));
    }
}
