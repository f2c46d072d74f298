package io.djltp.gradient;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * Where the features lie in an array that are cut over the ranks: an axis, or the middle part of
 * one, if a reshape has put it together with others.
 *
 * <p>The axis has {@code outer * count * inner} elements; the element {@code (o, k, i)} belongs to
 * the features of the number k of those of this rank. Features are divided to groups, such as
 * heads: {@code count} is the number of groups then, and a rank has whole groups.
 *
 * @param axis the axis
 * @param outer the elements of what lies before the features, on their axis
 * @param count the number of the rank's features, or groups of features
 * @param inner the elements of what lies behind them
 * @param unit the features of a group
 * @param folded the axes of length 1 directly before the features that a reshape has taken away,
 *     such as that of a batch of one row: they may come back
 */
record SlicePlace(int axis, long outer, long count, long inner, long unit, int folded) {

    /** Creates a place before which no axis was taken away. */
    SlicePlace(int axis, long outer, long count, long inner, long unit) {
        this(axis, outer, count, inner, unit, 0);
    }

    /** Returns the place of features that are the last axis. */
    static SlicePlace last(long[] shape) {
        int axis = shape.length - 1;
        return new SlicePlace(axis, 1, shape[axis], 1, 1);
    }

    /** Returns whether the features, or their groups in their order, are the last axis. */
    boolean isLast(long[] shape) {
        return axis == shape.length - 1 && outer == 1;
    }

    /** Returns whether all of the rank's features are the last elements, so many together. */
    boolean isLast(long[] shape, long elements) {
        return outer == 1 && product(shape, axis) * elements == product(shape, shape.length);
    }

    /** Returns the same on another axis. */
    SlicePlace on(int other) {
        return new SlicePlace(other, outer, count, inner, unit, folded);
    }

    /** Returns whether features lie alike, or groups of them: keys that several queries share. */
    boolean isAlike(SlicePlace other) {
        return axis == other.axis
                        && outer == other.outer
                        && (count % other.count == 0 || other.count % count == 0)
                || isSharedBy(other)
                || other.isSharedBy(this);
    }

    /** Returns whether this is a rank's only key head, and the other its query heads behind it. */
    private boolean isSharedBy(SlicePlace other) {
        return outer == 1 && count == 1 && inner == 1 && axis + 1 == other.axis;
    }

    /** Returns where the features may lie if an array is broadcast; nowhere if they are too. */
    List<SlicePlace> broadcast(long[] from, long[] to) {
        int other = axis + to.length - from.length;
        return other >= 0 && to[other] == from[axis] ? List.of(on(other)) : List.of();
    }

    /**
     * Returns where the features may lie in an array of another shape with the same elements in the
     * same order. Of a rank with a single group several places may look alike: one that explains
     * what follows is enough. If all groups of a rank become one, such as query heads those of a
     * key head, that is the first place: the others are for ranks that share the group. A new axis
     * of length 1 before the features may also be one that an earlier reshape has taken away, as a
     * matrix product does that computes a batch of one row.
     */
    List<SlicePlace> reshaped(long[] from, long[] to) {
        if (Arrays.equals(from, to)) {
            return List.of(this);
        }
        long before = outer * product(from, axis);
        List<Integer> single = singleAxes(to, before);
        int known = singleAxes(from, before).size();
        int added = single.size() - known;
        List<SlicePlace> places = new ArrayList<>();
        if (isOneGroup(added)) {
            int group = single.get(single.size() - 1);
            places.add(new SlicePlace(group, 1, 1, 1, unit * count));
            if (unit == 1 && added > folded) {
                return places;
            }
        }
        int away = Math.max(0, folded - added);
        if (count == 1 && outer == 1 && inner == 1 && single.size() == known) {
            int number = singleAxes(from, before).indexOf(axis);
            return List.of(on(single.get(number)));
        }
        for (int i = 0; i < to.length; i++) {
            long passed = product(to, i);
            long left = before / passed; // of what lies before, on axis i
            boolean other = count == 1 && !single.isEmpty() && !single.contains(i);
            if (other || before % passed != 0 || to[i] % left != 0) {
                continue;
            }
            long rest = to[i] / left;
            if (rest % count == 0) {
                places.add(new SlicePlace(i, left, count, rest / count, unit, away));
            } else if (count % rest == 0 && rest > 1) {
                places.add(new SlicePlace(i, left, rest, 1, unit * (count / rest), away));
            }
        }
        if (added > 0 && added <= folded) {
            Collections.reverse(places); // a group hides what comes behind it
        }
        return places;
    }

    /**
     * Returns whether features are divided to groups of which a rank has one: before them is a new
     * axis of the length 1. It is taken for the number of groups, as one of any other length would
     * be.
     *
     * @param added the axes of length 1 before the features that a reshape has added
     */
    private boolean isOneGroup(int added) {
        return count > 1 && inner == 1 && added > 0;
    }

    /** Returns whether this is all groups of another place as one. */
    boolean isAllOf(SlicePlace groups) {
        return count == 1 && unit > groups.unit;
    }

    /** Returns the axes of length 1 that have so many elements before them. */
    private static List<Integer> singleAxes(long[] shape, long before) {
        List<Integer> axes = new ArrayList<>();
        for (int i = 0; i < shape.length; i++) {
            if (shape[i] == 1 && product(shape, i) == before) {
                axes.add(i);
            }
        }
        return axes;
    }

    private static long product(long[] shape, int axes) {
        return Arrays.stream(shape, 0, axes).reduce(1, (a, b) -> a * b);
    }
}
