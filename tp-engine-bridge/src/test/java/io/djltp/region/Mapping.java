package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;

import java.util.List;

/**
 * Every mapping, and what it must do, worked out on one rank that has the arrays of all. Each has
 * an input and an output that are whole, or this rank's slice of an axis.
 */
@SuppressWarnings("try") // a scope is used by being open
enum Mapping {
    COPY(false, false, -1, 0, 1) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.copyToRegion(input);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return inputs.get(rank);
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return sum(gradients);
        }
    },
    REDUCE(false, false, -1, 1, 0) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.reduceFromRegion(input);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return sum(inputs);
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return gradients.get(rank);
        }
    },
    GATHER(true, false, -1, 1, 0) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.gatherFromRegion(input, cut);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return concat(inputs, -1);
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return slice(gradients.get(rank), -1, rank, gradients.size());
        }
    },
    SCATTER(false, true, -1, 0, 1) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.scatterToRegion(input, cut);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return slice(inputs.get(rank), -1, rank, inputs.size());
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return concat(gradients, -1);
        }
    },
    GATHER_SEQUENCE(true, false, 0, 1, 1) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.gatherFromSequenceRegion(input, cut, true);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return concat(inputs, 0);
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return slice(sum(gradients), 0, rank, gradients.size());
        }
    },
    GATHER_SEQUENCE_WHOLE_GRADIENT(true, false, 0, 1, 0) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.gatherFromSequenceRegion(input, cut, false);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return concat(inputs, 0);
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return slice(gradients.get(rank), 0, rank, gradients.size());
        }
    },
    SCATTER_SEQUENCE(false, true, 0, 0, 1) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.scatterToSequenceRegion(input, cut);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return slice(inputs.get(rank), 0, rank, inputs.size());
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return concat(gradients, 0);
        }
    },
    REDUCE_SCATTER_SEQUENCE(false, true, 0, 1, 1) {
        @Override
        NDArray apply(RegionMappings mappings, NDArray input, Cut cut) {
            return mappings.reduceScatterToSequenceRegion(input, cut);
        }

        @Override
        NDArray forward(List<NDArray> inputs, int rank) {
            return slice(sum(inputs), 0, rank, inputs.size());
        }

        @Override
        NDArray backward(List<NDArray> gradients, int rank) {
            return concat(gradients, 0);
        }
    };

    private final boolean slicedInput;
    private final boolean slicedOutput;
    private final int axis;

    /** How many collectives the passes take. */
    final int forwardCalls;

    final int backwardCalls;

    Mapping(
            boolean slicedInput,
            boolean slicedOutput,
            int axis,
            int forwardCalls,
            int backwardCalls) {
        this.slicedInput = slicedInput;
        this.slicedOutput = slicedOutput;
        this.axis = axis;
        this.forwardCalls = forwardCalls;
        this.backwardCalls = backwardCalls;
    }

    /** Applies the mapping to what the rank has of a whole whose axis is cut so. */
    abstract NDArray apply(RegionMappings mappings, NDArray input, Cut cut);

    /** Returns the output of a rank, given the inputs of all. */
    abstract NDArray forward(List<NDArray> inputs, int rank);

    /** Returns the gradient of a rank's input, given those of all ranks' outputs. */
    abstract NDArray backward(List<NDArray> gradients, int rank);

    Shape inputShape(Shape whole, int rank, int size) {
        return slicedInput ? sliceShape(whole, rank, size) : whole;
    }

    Shape outputShape(Shape whole, int rank, int size) {
        return slicedOutput ? sliceShape(whole, rank, size) : whole;
    }

    int axis(Shape whole) {
        return Math.floorMod(axis, whole.dimension());
    }

    /** Returns the balanced cut of a whole. */
    Cut cut(Shape whole, int size) {
        return Cut.balanced(whole.get(axis(whole)), size);
    }

    private Shape sliceShape(Shape whole, int rank, int size) {
        long[] dimensions = whole.getShape().clone();
        dimensions[axis(whole)] =
                Cut.balanced(dimensions[axis(whole)], size).getRange(rank).length();
        return new Shape(dimensions);
    }

    static NDArray sum(List<NDArray> arrays) {
        NDArray sum = arrays.get(0);
        for (NDArray array : arrays.subList(1, arrays.size())) {
            sum = sum.add(array);
        }
        return sum;
    }

    private static NDArray concat(List<NDArray> arrays, int axis) {
        return NDArrays.concat(new NDList(arrays), axis);
    }

    /** Returns a rank's slice of an axis. */
    static NDArray slice(NDArray whole, int axis, int rank, int size) {
        int positive = Math.floorMod(axis, whole.getShape().dimension());
        ShardRange range = Cut.balanced(whole.getShape().get(positive), size).getRange(rank);
        try (PointerScope scope = new PointerScope()) {
            return TensorView.toArray(
                    TensorView.of(whole)
                            .tensor()
                            .narrow(positive, range.start(), range.length())
                            .contiguous(),
                    whole.getManager());
        }
    }
}
