package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

/** Whether a parameter can be cut by a strategy, and every rank gets a part. */
final class SplitCheck {

    private SplitCheck() {}

    /** Checks a parameter, see {@link ShardingStrategy#checkSplit}. */
    static void check(ShardingStrategy strategy, String name, Shape shape, int size) {
        String parameter = "Parameter " + name + " " + shape + " cannot be cut over ";
        int axis;
        Cut cut;
        try {
            axis = strategy.axis(shape);
            cut = strategy.cut(shape, size);
            checkFits(strategy, cut, shape.get(axis), axis, size);
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
}
