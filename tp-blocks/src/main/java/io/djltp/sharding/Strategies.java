package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** The strategies that {@link ShardingStrategy} makes, and the parts of {@link AxisPart}. */
final class Strategies {

    private Strategies() {}

    /** Checks that a cut is one of an axis and of a group. */
    static void checkFits(ShardingStrategy strategy, Cut cut, long length, int axis, int size) {
        if (cut.getRanks() != size) {
            throw Errors.argument(
                    "the strategy %s is one for %s ranks, not for %s",
                    strategy, cut.getRanks(), size);
        }
        if (cut.getLength() != length) {
            throw Errors.argument(
                    "the strategy %s cuts %s elements, and axis %s has %s",
                    strategy, cut.getLength(), axis, length);
        }
    }

    private static int checkedAxis(int axis, Shape shape) {
        int counted = axis < 0 ? axis + shape.dimension() : axis;
        if (counted < 0 || counted >= shape.dimension()) {
            throw Errors.argument("The shape %s has no axis %s", shape, axis);
        }
        return counted;
    }

    /** Returns the cut of parts that lie one after another. */
    private static Cut stack(List<AxisPart> parts, long length, int size) {
        List<Cut> cuts = parts.stream().map(part -> part.cut(size)).toList();
        return Cut.of(
                length,
                size,
                rank -> {
                    List<ShardRange> ranges = new ArrayList<>();
                    long start = 0;
                    for (Cut part : cuts) {
                        for (ShardRange range : part.getRanges(rank)) {
                            append(ranges, range.movedBy(start));
                        }
                        start += part.getLength();
                    }
                    return ranges;
                });
    }

    /** Ranges that touch are one: cuts that do the same are equal. */
    private static void append(List<ShardRange> ranges, ShardRange range) {
        int last = ranges.size() - 1;
        if (range.length() == 0) {
            return;
        }
        if (last >= 0 && ranges.get(last).end() == range.start()) {
            ShardRange before = ranges.get(last);
            ranges.set(last, new ShardRange(before.start(), before.length() + range.length()));
        } else {
            ranges.add(range);
        }
    }

    /**
     * Cuts one axis.
     *
     * @param axis the axis, which may count from the last
     * @param chosen the cut, or {@code null}: balanced ranges
     */
    record Axiswise(int axis, @Nullable Cut chosen) implements ShardingStrategy {

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return checkedAxis(axis, shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            int cutAxis = axis(shape);
            long length = shape.get(cutAxis);
            if (chosen == null) {
                return Cut.balanced(length, size);
            }
            checkFits(this, chosen, length, cutAxis, size);
            return chosen;
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "axiswise(" + axis + (chosen == null ? "" : ", " + chosen) + ")";
        }
    }

    /** Gives every rank all of it. */
    record Replicate() implements ShardingStrategy {

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

    /**
     * Cuts an axis that is two halves, [gate; up]: each half into balanced ranges.
     *
     * @param axis the axis, which may count from the last
     */
    record GateUp(int axis) implements ShardingStrategy {

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return checkedAxis(axis, shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            long length = shape.get(axis(shape));
            if (length % 2 != 0) {
                throw Errors.argument(
                        "gate and up are the two halves of axis %s, whose length %s is odd. Give"
                                + " twice as many units as the hidden layer has features",
                        axis(shape), length);
            }
            if (length < 2L * size) {
                throw Errors.argument(
                        "gate and up have %1$s features each, for %2$s ranks. Use at most %1$s %3$s"
                                + " or a larger layer",
                        length / 2, size, length / 2 == 1 ? "rank" : "ranks");
            }
            AxisPart half = new Even(length / 2);
            return stack(List.of(half, half), length, size);
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "gateUp(" + axis + ")";
        }
    }

    /**
     * Cuts an axis part by part: a rank's shard is its share of each, one after another.
     *
     * @param axis the axis, which may count from the last
     * @param parts the parts
     */
    record Segmented(int axis, List<AxisPart> parts) implements ShardingStrategy {

        Segmented {
            Errors.check(!parts.isEmpty(), "A segmented axis needs one part or more");
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return checkedAxis(axis, shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            long length = shape.get(axis(shape));
            long covered = parts.stream().mapToLong(AxisPart::getLength).sum();
            if (covered != length) {
                String sum =
                        parts.stream()
                                .map(part -> String.valueOf(part.getLength()))
                                .collect(Collectors.joining(" + "));
                throw Errors.argument(
                        "the segments cover %s%s of %s elements of axis %s under the strategy %s."
                                + " Give parts whose lengths sum up to that of the axis",
                        parts.size() > 1 ? sum + " = " : "", covered, length, axis(shape), this);
            }
            return stack(parts, length, size);
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return parts.stream()
                    .map(AxisPart::toString)
                    .collect(Collectors.joining(", ", "segmented(" + axis + ", ", ")"));
        }
    }

    /** Stand for the strategies that a block of several weights chooses for each of them. */
    enum OfBlock implements ShardingStrategy {
        TENSOR("tensorParallel"),
        EXPERT("expertParallel");

        private final String text;

        OfBlock(String text) {
            this.text = text;
        }

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            throw Errors.argument(
                    "The strategy %s stands for those that a block of several weights chooses for"
                            + " each of them, and has no cut of its own for a weight %s: give it to"
                            + " such a block, or a weight a strategy that cuts an axis, such as"
                            + " rowwise()",
                    text, shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            throw Errors.argument("No axis %s", axis(shape));
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return text;
        }
    }

    /**
     * Cuts as another strategy, and throws where that gives several ranks the same.
     *
     * @param strategy the other one
     */
    record WithoutReplicas(ShardingStrategy strategy) implements ShardingStrategy {

        /** {@inheritDoc} */
        @Override
        public int axis(Shape shape) {
            return strategy.axis(shape);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(Shape shape, int size) {
            Cut cut = strategy.cut(shape, size);
            Errors.check(
                    cut.isPartition(),
                    "the strategy %s gives several ranks the same, which would count as often in"
                            + " what is summed over the ranks. Give each element to one rank",
                    strategy);
            return cut;
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return strategy.toString();
        }
    }

    /**
     * A part that is cut into balanced ranges.
     *
     * @param getLength its length
     */
    record Even(long getLength) implements AxisPart {

        Even {
            checkPositive("A part of an axis", getLength);
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(int ranks) {
            return Cut.balanced(getLength, ranks);
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "even(" + getLength + ")";
        }
    }

    /**
     * A part that is cut as it is told to.
     *
     * @param cut the cut
     */
    record Chosen(Cut cut) implements AxisPart {

        /** {@inheritDoc} */
        @Override
        public long getLength() {
            return cut.getLength();
        }

        /** {@inheritDoc} */
        @Override
        public Cut cut(int ranks) {
            return checkRanks(cut, ranks, "elements");
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            return "chosen(" + cut + ")";
        }
    }

    /**
     * A part that is made of heads: those of queries, or of keys or values, of which there may be
     * fewer.
     *
     * @param queries the number of query heads
     * @param keyValues the number of heads of the part
     * @param dim the features of a head
     * @param chosen which query heads each rank has, or {@code null}: balanced ranges
     */
    record Heads(int queries, int keyValues, long dim, @Nullable Cut chosen) implements AxisPart {

        Heads {
            checkPositive("The number of heads", queries);
            checkPositive("The number of key/value heads", keyValues);
            checkPositive("The features of a head", dim);
            if (queries % keyValues != 0) {
                throw Errors.argument(
                        "%s query heads cannot share %s key/value heads: as many have to use each."
                                + " Give a number of query heads that is a multiple of that of"
                                + " key/value heads",
                        queries, keyValues);
            }
            for (int rank = 0; chosen != null && rank < chosen.getRanks(); rank++) {
                if (chosen.getRanges(rank).size() != 1 || chosen.getShardLength(rank) == 0) {
                    throw Errors.argument(
                            "Rank %s of a cut of heads needs one range, not %s", rank, chosen);
                }
            }
        }

        /** {@inheritDoc} */
        @Override
        public long getLength() {
            return keyValues * dim;
        }

        /**
         * {@inheritDoc}
         *
         * <p>Each rank has the heads that its query heads use.
         */
        @Override
        public Cut cut(int ranks) {
            if (ranks > queries) {
                throw Errors.argument(
                        "a head cannot be divided, and there are %s ranks for %s heads. Use at most"
                                + " %2$s tensor-parallel %s, and the others along the axis data",
                        ranks, queries, queries == 1 ? "rank" : "ranks");
            }
            Cut heads =
                    chosen == null
                            ? Cut.balanced(queries, ranks)
                            : checkRanks(chosen, ranks, "heads");
            int sharing = queries / keyValues; // query heads that use one key/value head
            return Cut.of(
                    getLength(),
                    ranks,
                    rank -> {
                        ShardRange own = heads.getRange(rank);
                        long first = own.start() / sharing;
                        long last = (own.end() - 1) / sharing;
                        return List.of(new ShardRange(first * dim, (last - first + 1) * dim));
                    });
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            Object query = chosen == null ? queries : chosen;
            return queries == keyValues
                    ? "heads(" + query + ", " + dim + ")"
                    : "keyValueHeads(" + query + ", " + keyValues + ", " + dim + ")";
        }
    }

    private static void checkPositive(String what, long number) {
        Errors.check(number > 0, "%s must be 1 or more, not %s", what, number);
    }

    private static Cut checkRanks(Cut cut, int ranks, String what) {
        if (cut.getRanks() != ranks) {
            throw Errors.argument(
                    "the cut %s %s is one for %s ranks, not for %s",
                    cut, what, cut.getRanks(), ranks);
        }
        return cut;
    }
}
