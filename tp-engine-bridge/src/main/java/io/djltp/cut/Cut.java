package io.djltp.cut;

import io.djltp.internal.Errors;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.function.IntFunction;
import java.util.stream.Collectors;

/**
 * Which ranges of one axis each rank of a group holds. A value: weights and activations that are
 * cut alike have equal cuts.
 *
 * <p>A rank holds one range or several, in the order in which they lie in its shard, one after
 * another. Lengths may differ between ranks. A range may be on several ranks: they are replicas of
 * each other, and a gradient of what they hold is a summand on each.
 */
public final class Cut {

    private final long length;
    private final List<List<ShardRange>> ranges; // by rank

    private Cut(long length, List<List<ShardRange>> ranges) {
        this.length = length;
        this.ranges = ranges;
    }

    /**
     * Returns the cut into consecutive ranges, one a rank, whose lengths differ by at most one: the
     * first {@code length mod ranks} ranks get one element more. With fewer elements than ranks the
     * last ranges are empty. The rule is that of MAX's sharding strategies; PyTorch's {@code chunk}
     * has another.
     *
     * @param length the length of the axis
     * @param ranks the number of ranks
     * @return the cut
     * @throws IllegalArgumentException if the length is negative or there is no rank
     */
    public static Cut balanced(long length, int ranks) {
        if (length < 0 || ranks < 1) {
            throw Errors.argument(
                    "An axis of length %s cannot be cut over %s ranks", length, ranks);
        }
        List<List<ShardRange>> all = new ArrayList<>(ranks);
        for (int rank = 0; rank < ranks; rank++) {
            all.add(List.of(ShardRange.balanced(length, rank, ranks)));
        }
        return new Cut(length, all);
    }

    /**
     * Returns the cut that gives every rank the whole.
     *
     * @param length the length of the axis
     * @param ranks the number of ranks
     * @return the cut
     */
    public static Cut replicated(long length, int ranks) {
        List<ShardRange> whole = List.of(new ShardRange(0, length));
        return new Cut(length, Collections.nCopies(ranks, whole));
    }

    /**
     * Returns the cut into consecutive ranges of given lengths, one a rank.
     *
     * @param lengths the length of each rank's range
     * @return the cut
     * @throws IllegalArgumentException if there is no rank, or a length is negative
     */
    public static Cut ofLengths(long... lengths) {
        Errors.check(lengths.length != 0, "A cut needs the length of one rank or more");
        List<List<ShardRange>> ranges = new ArrayList<>(lengths.length);
        long start = 0;
        for (long each : lengths) {
            ranges.add(List.of(new ShardRange(start, each)));
            start += each;
        }
        return new Cut(start, List.copyOf(ranges));
    }

    /**
     * Returns a cut into any ranges.
     *
     * @param length the length of the axis
     * @param ranks the number of ranks
     * @param rangesOf returns the ranges of a rank, in the order in which they lie in its shard
     * @return the cut
     * @throws IllegalArgumentException if a range is not on the axis, the ranges of a rank overlap,
     *     or a part of the axis is on no rank
     */
    public static Cut of(long length, int ranks, IntFunction<List<ShardRange>> rangesOf) {
        List<List<ShardRange>> all = new ArrayList<>(ranks);
        for (int rank = 0; rank < ranks; rank++) {
            all.add(List.copyOf(rangesOf.apply(rank)));
        }
        Cut cut = new Cut(length, List.copyOf(all));
        cut.check();
        return cut;
    }

    private void check() {
        for (int rank = 0; rank < getRanks(); rank++) {
            List<ShardRange> sorted = sorted(ranges.get(rank));
            long end = 0;
            for (ShardRange range : sorted) {
                if (range.start() < end || range.end() > length) {
                    throw Errors.argument(
                            "Rank %s of a cut of an axis of length %s has the ranges %s, which"
                                    + " overlap or are not on the axis",
                            rank, length, sorted);
                }
                end = range.end();
            }
        }
        long end = 0;
        for (ShardRange range : sorted(ranges.stream().flatMap(List::stream).toList())) {
            if (range.start() > end) {
                break;
            }
            end = Math.max(end, range.end());
        }
        if (end < length) {
            throw Errors.argument(
                    "The element %s of an axis of length %s is on no rank of the cut %s",
                    end, length, ranges);
        }
    }

    private static List<ShardRange> sorted(List<ShardRange> ranges) {
        return ranges.stream()
                .filter(range -> range.length() > 0)
                .sorted((a, b) -> Long.compare(a.start(), b.start()))
                .toList();
    }

    /**
     * Returns the length of the axis.
     *
     * @return the length over all ranks
     */
    public long getLength() {
        return length;
    }

    /**
     * Returns the number of ranks.
     *
     * @return the size of the group
     */
    public int getRanks() {
        return ranges.size();
    }

    /**
     * Returns the ranges of a rank.
     *
     * @param rank the rank
     * @return the ranges, in the order in which they lie in the rank's shard
     */
    public List<ShardRange> getRanges(int rank) {
        return ranges.get(rank);
    }

    /**
     * Returns the only range of a rank.
     *
     * @param rank the rank
     * @return the range
     * @throws IllegalStateException if the rank has several, see {@link #isConsecutive()}
     */
    public ShardRange getRange(int rank) {
        if (ranges.get(rank).size() != 1) {
            throw Errors.state("Rank %s has the ranges %s, not one", rank, ranges.get(rank));
        }
        return ranges.get(rank).get(0);
    }

    /**
     * Returns the length of a rank's shard.
     *
     * @param rank the rank
     * @return the sum of the lengths of its ranges
     */
    public long getShardLength(int rank) {
        return ranges.get(rank).stream().mapToLong(ShardRange::length).sum();
    }

    /**
     * Returns the lengths of all shards.
     *
     * @return the length of each rank's shard
     */
    public long[] getShardLengths() {
        long[] lengths = new long[getRanks()];
        Arrays.setAll(lengths, this::getShardLength);
        return lengths;
    }

    /**
     * Returns whether the shards, one after another in the order of the ranks, are the axis.
     *
     * @return whether each rank has one range, which begins where that of the rank before ends
     */
    public boolean isConsecutive() {
        long end = 0;
        for (List<ShardRange> each : ranges) {
            if (each.size() != 1 || each.get(0).start() != end) {
                return false;
            }
            end = each.get(0).end();
        }
        return end == length;
    }

    /**
     * Returns whether every element is on one rank only.
     *
     * @return whether there are no replicas
     */
    public boolean isPartition() {
        return Arrays.stream(getShardLengths()).sum() == length;
    }

    /**
     * Returns the axis in stretches that the same ranks hold.
     *
     * @return the segments, in the order of the axis
     */
    public List<Segment> getSegments() {
        return Segment.of(this);
    }

    /**
     * Returns the ranks that hold the same as a rank, in the same order.
     *
     * @param rank the rank
     * @return the replicas of its shard in ascending order, itself included
     */
    public int[] getReplicas(int rank) {
        int[] all = new int[getRanks()];
        Arrays.setAll(all, i -> i);
        return Arrays.stream(all).filter(i -> ranges.get(i).equals(ranges.get(rank))).toArray();
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof Cut
                && ((Cut) other).length == length
                && ((Cut) other).ranges.equals(ranges);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return 31 * Long.hashCode(length) + ranges.hashCode();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return ranges.stream()
                .map(
                        own ->
                                own.stream()
                                        .map(each -> "[" + each.start() + "," + each.end() + ")")
                                        .collect(Collectors.joining(" ")))
                .collect(Collectors.joining(" | ", "", " of " + length));
    }
}
