package io.djltp.checkpoint.store;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * A stretch of an axis that is copied from one array to another.
 *
 * @param source where it begins in the array that is read
 * @param target where it begins in the array that is filled
 * @param length the number of indices
 */
record AxisPiece(long source, long target, long length) {

    /** Returns the pieces of an axis that the source has whole, in the order of the source. */
    static List<AxisPiece> ofWhole(List<ShardRange> wanted) {
        return merge(ofWhole(wanted, new ShardRange(0, Long.MAX_VALUE), 0));
    }

    /**
     * Returns the pieces of an axis that are to be had from a part, in the order of the part. Of
     * replicas the first part gives.
     */
    static List<AxisPiece> ofPart(Cut cut, int part, List<ShardRange> wanted) {
        List<AxisPiece> pieces = new ArrayList<>();
        for (Segment segment : cut.getSegments()) {
            if (segment.range().length() > 0 && segment.getFirstRank() == part) {
                pieces.addAll(ofWhole(wanted, segment.range(), segment.getPlace(part)));
            }
        }
        return merge(pieces);
    }

    /** Returns what is wanted of a range of the whole that lies at a place of the source. */
    private static List<AxisPiece> ofWhole(List<ShardRange> wanted, ShardRange range, long place) {
        List<AxisPiece> pieces = new ArrayList<>();
        long target = 0;
        for (ShardRange each : wanted) {
            long begin = Math.max(each.start(), range.start());
            long end = Math.min(each.end(), range.end());
            if (begin < end) {
                pieces.add(
                        new AxisPiece(
                                place + begin - range.start(),
                                target + begin - each.start(),
                                end - begin));
            }
            target += each.length();
        }
        return pieces;
    }

    private static List<AxisPiece> merge(List<AxisPiece> pieces) {
        pieces.sort(Comparator.comparingLong(AxisPiece::source));
        List<AxisPiece> merged = new ArrayList<>();
        for (AxisPiece next : pieces) {
            AxisPiece last = merged.isEmpty() ? null : merged.get(merged.size() - 1);
            if (last != null
                    && last.source + last.length == next.source
                    && last.target + last.length == next.target) {
                merged.set(
                        merged.size() - 1,
                        new AxisPiece(last.source, last.target, last.length + next.length));
            } else {
                merged.add(next);
            }
        }
        return merged;
    }
}
