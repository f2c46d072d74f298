package io.djltp.exchange;

import java.util.ArrayList;
import java.util.List;

/** Parts whose rows lie one below the other, such as queries, keys and values in one weight. */
final class StackedRows {

    private final long[] starts; // of each part, and the end of the last

    /** Creates a stack of parts of these lengths. */
    StackedRows(long... lengths) {
        starts = new long[lengths.length + 1];
        for (int i = 0; i < lengths.length; i++) {
            starts[i + 1] = starts[i] + lengths[i];
        }
    }

    /**
     * Consecutive rows of one part.
     *
     * @param part the number of the part
     * @param from the first row, counted from the part's first
     * @param to the row behind the last
     */
    record Segment(int part, long from, long to) {

        long length() {
            return to - from;
        }
    }

    /** Returns the number of all rows. */
    long total() {
        return starts[starts.length - 1];
    }

    /** Returns where a part begins. */
    long start(int part) {
        return starts[part];
    }

    /** Returns of which parts some rows of the stack are, in their order. */
    List<Segment> segments(long from, long to) {
        List<Segment> segments = new ArrayList<>();
        for (int i = 0; i + 1 < starts.length; i++) {
            long first = Math.max(from, starts[i]);
            long end = Math.min(to, starts[i + 1]);
            if (first < end) {
                segments.add(new Segment(i, first - starts[i], end - starts[i]));
            }
        }
        return segments;
    }
}
