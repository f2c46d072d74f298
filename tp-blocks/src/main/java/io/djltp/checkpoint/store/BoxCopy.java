package io.djltp.checkpoint.store;

import java.io.IOException;
import java.util.List;

/**
 * The runs of neighbouring elements that a box of a row-major array is copied by: the box is the
 * product of pieces of each axis. From the last axis that is not copied whole, the axes behind it
 * are one run.
 */
final class BoxCopy {

    private final List<List<AxisPiece>> pieces; // by axis
    private final long[] sourceStrides; // elements
    private final long[] targetStrides;
    private final int last; // the axis whose pieces are runs

    /**
     * Plans a copy.
     *
     * @param pieces the pieces of each axis
     * @param source the shape of the array that is read
     * @param target the shape of the array that is filled
     */
    BoxCopy(List<List<AxisPiece>> pieces, long[] source, long[] target) {
        this.pieces = pieces;
        sourceStrides = strides(source);
        targetStrides = strides(target);
        int axis = source.length - 1;
        while (axis > 0 && isWhole(pieces.get(axis), source[axis], target[axis])) {
            axis--;
        }
        last = axis;
    }

    private static boolean isWhole(List<AxisPiece> pieces, long source, long target) {
        return source == target
                && pieces.size() == 1
                && pieces.get(0).equals(new AxisPiece(0, 0, source));
    }

    private static long[] strides(long[] shape) {
        long[] strides = new long[shape.length];
        long stride = 1;
        for (int axis = shape.length - 1; axis >= 0; axis--) {
            strides[axis] = stride;
            stride *= shape[axis];
        }
        return strides;
    }

    /** What a run is done with. */
    @FunctionalInterface
    interface Run {

        /**
         * Copies a run.
         *
         * @param source its first element in the array that is read
         * @param target its first element in the array that is filled
         * @param length the number of elements
         */
        void copy(long source, long target, long length) throws IOException;
    }

    /** Goes over all runs, in the order of the source. */
    void forEach(Run run) throws IOException {
        if (last < 0) {
            run.copy(0, 0, 1); // a scalar
        } else if (pieces.stream().noneMatch(List::isEmpty)) {
            visit(0, 0, 0, run);
        }
    }

    private void visit(int axis, long source, long target, Run run) throws IOException {
        long from = sourceStrides[axis];
        long to = targetStrides[axis];
        for (AxisPiece piece : pieces.get(axis)) {
            if (axis == last) {
                run.copy(
                        source + piece.source() * from,
                        target + piece.target() * to,
                        piece.length() * from);
                continue;
            }
            for (long i = 0; i < piece.length(); i++) {
                visit(
                        axis + 1,
                        source + (piece.source() + i) * from,
                        target + (piece.target() + i) * to,
                        run);
            }
        }
    }
}
