package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Where the slices of an axis lie that the ranks of a group have. */
@SuppressWarnings("try") // a scope is used by being open
final class AxisSlices {

    private final Communicator communicator;

    AxisSlices(Communicator communicator) {
        this.communicator = communicator;
    }

    /** The input at its place in a zeroed whole; backward, autograd cuts the own slice out. */
    Tensor padded(NDArray input, int axis, long total) {
        return padded(input, axis, range(total), total);
    }

    /** The input at another place of a zeroed whole. */
    static Tensor padded(NDArray input, int axis, ShardRange own, long total) {
        Tensor tensor = TensorView.of(input).tensor();
        int dimensions = (int) tensor.dim();
        long[] padding = new long[2 * (dimensions - axis)]; // from the last axis backwards
        padding[padding.length - 2] = own.start();
        padding[padding.length - 1] = total - own.start() - own.length();
        try (Scalar zero = new Scalar(0)) {
            return torch.constant_pad_nd(tensor, padding, zero).contiguous();
        }
    }

    /** Takes the own slice of an axis, a view; closes the view that it is taken of. */
    NDArray slice(NDArray view, int axis) {
        try (PointerScope scope = new PointerScope();
                view) {
            Tensor tensor = TensorView.of(view).tensor();
            ShardRange own = range(tensor.size(axis));
            return TensorView.toArray(
                    tensor.narrow(axis, own.start(), own.length()), view.getManager());
        }
    }

    /** The elements of each rank's slice of an axis. */
    long[] shares(Tensor whole, int axis) {
        long total = whole.size(axis);
        long slice = total == 0 ? 0 : whole.numel() / total; // elements of one index of the axis
        long[] shares = new long[communicator.getSize()];
        for (int i = 0; i < shares.length; i++) {
            shares[i] = slice * Cut.balanced(total, shares.length).getRange(i).length();
        }
        return shares;
    }

    /** The own range of an axis. */
    ShardRange range(long total) {
        return Cut.balanced(total, communicator.getSize()).getRange(communicator.getRank());
    }

    /** Refuses a slice that is not as long as the own range. */
    void checkSlice(Shape shape, int axis, long total) {
        long expected = range(total).length();
        if (shape.get(axis) != expected) {
            throw new IllegalArgumentException(
                    "Axis "
                            + axis
                            + " of the slice "
                            + shape
                            + " of rank "
                            + communicator.getRank()
                            + " must have length "
                            + expected
                            + " for a whole of "
                            + total
                            + " over "
                            + communicator.getSize()
                            + " ranks");
        }
    }
}
