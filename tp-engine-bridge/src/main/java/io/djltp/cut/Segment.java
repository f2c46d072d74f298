package io.djltp.cut;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

/**
 * A stretch of an axis that the same ranks of a cut hold, all of it: where a range of a rank begins
 * or ends, one segment ends and another begins.
 *
 * @param range where on the axis it lies
 * @param ranks the ranks that hold it, in ascending order; the first is the one that others get it
 *     from
 * @param places where it begins in the shard of each of these ranks
 */
public record Segment(ShardRange range, List<Integer> ranks, List<Long> places) {

    /** Returns the segments of a cut, in the order of the axis. */
    static List<Segment> of(Cut cut) {
        TreeSet<Long> bounds = new TreeSet<>(List.of(0L, cut.getLength()));
        for (int rank = 0; rank < cut.getRanks(); rank++) {
            for (ShardRange range : cut.getRanges(rank)) {
                bounds.add(range.start());
                bounds.add(range.end());
            }
        }
        List<Segment> segments = new ArrayList<>(bounds.size());
        long start = bounds.pollFirst();
        for (long end : bounds) {
            segments.add(of(cut, new ShardRange(start, end - start)));
            start = end;
        }
        return segments;
    }

    private static Segment of(Cut cut, ShardRange range) {
        List<Integer> ranks = new ArrayList<>();
        List<Long> places = new ArrayList<>();
        for (int rank = 0; rank < cut.getRanks(); rank++) {
            long place = 0;
            for (ShardRange own : cut.getRanges(rank)) {
                if (own.start() <= range.start() && range.end() <= own.end()) {
                    ranks.add(rank);
                    places.add(place + range.start() - own.start());
                }
                place += own.length();
            }
        }
        return new Segment(range, List.copyOf(ranks), List.copyOf(places));
    }

    /**
     * Returns the rank that the others get the segment from.
     *
     * @return the first rank that holds it
     */
    public int getFirstRank() {
        return ranks.get(0);
    }

    /**
     * Returns whether several ranks hold the segment.
     *
     * @return whether there are replicas
     */
    public boolean isReplicated() {
        return ranks.size() > 1;
    }

    /**
     * Returns where the segment begins in a rank's shard.
     *
     * @param rank the rank
     * @return the place, or -1 if the rank does not hold it
     */
    public long getPlace(int rank) {
        int index = ranks.indexOf(rank);
        return index < 0 ? -1 : places.get(index);
    }
}
