package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.cut.ShardRange;

import java.util.Arrays;
import java.util.Comparator;
import java.util.stream.IntStream;

/**
 * The labels of a batch as one rank sees them: which rows count, and which rows have a class of
 * this rank as their label, in the order of the classes.
 */
final class LabelRows {

    final long valid; // the number of rows that count
    final boolean[] counts; // whether a row counts
    final long[] rows; // the rows with a label of this rank, by label
    final long[] classes; // their labels, counted from the first class of the rank
    private final long[] labels; // of all rows
    final long[] sample; // if not null, the labels are positions in these classes

    /**
     * Checks and sorts labels.
     *
     * @param labels the labels over all ranks
     * @param first the first class of the rank
     * @param length the number of classes of the rank
     * @param total the number of classes of all ranks
     * @param ignoreIndex the label of rows that do not count
     * @throws IllegalArgumentException if a label is not a class
     */
    LabelRows(long[] labels, long first, long length, long total, long ignoreIndex) {
        counts = new boolean[labels.length];
        long counted = 0;
        for (int i = 0; i < labels.length; i++) {
            if (labels[i] == ignoreIndex) {
                continue;
            }
            if (labels[i] < 0 || labels[i] >= total) {
                throw new IllegalArgumentException(
                        "A label is "
                                + labels[i]
                                + ", but the labels of "
                                + total
                                + " classes are 0 to "
                                + (total - 1)
                                + " (or "
                                + ignoreIndex
                                + " for a row that does not count)");
            }
            counts[i] = true;
            counted++;
        }
        valid = counted;
        rows = sortedRows(labels, first, length);
        classes = Arrays.stream(rows).map(row -> labels[(int) row] - first).toArray();
        this.labels = labels;
        sample = null;
    }

    private LabelRows(LabelRows all, long[] sample) {
        valid = all.valid;
        counts = all.counts;
        labels = all.labels;
        rows = all.rows;
        classes = Arrays.stream(all.classes).map(c -> Arrays.binarySearch(sample, c)).toArray();
        this.sample = sample;
    }

    /**
     * Returns the same labels among some of the classes.
     *
     * @param ascending classes of the rank in ascending order, all labels of the rank among them
     * @return the labels as positions in these classes
     */
    LabelRows in(long[] ascending) {
        return new LabelRows(this, ascending);
    }

    /** Returns those labels that count. */
    long[] counted() {
        return IntStream.range(0, labels.length)
                .filter(i -> counts[i])
                .mapToLong(i -> labels[i])
                .toArray();
    }

    /**
     * Checks and sorts labels.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param labels the labels over all ranks, [x1, ..., xn], of any numeric type
     * @param range the classes of the rank
     * @param total the number of classes of all ranks
     * @param ignoreIndex the label of rows that do not count
     * @throws IllegalArgumentException if a label is not a class, or the labels do not fit the
     *     features
     */
    static LabelRows of(
            NDArray features, NDArray labels, ShardRange range, long total, long ignoreIndex) {
        long last = features.getShape().get(features.getShape().dimension() - 1);
        if (labels.size() * last != features.size()) {
            throw new IllegalArgumentException(
                    "The labels "
                            + labels.getShape()
                            + " do not fit the features "
                            + features.getShape()
                            + ": one label for each row is needed");
        }
        try (NDArray copy = labels.toType(DataType.INT64, true)) {
            long[] ids = copy.toLongArray();
            return new LabelRows(ids, range.start(), range.length(), total, ignoreIndex);
        }
    }

    private long[] sortedRows(long[] labels, long first, long length) {
        return IntStream.range(0, labels.length)
                .filter(i -> counts[i] && labels[i] >= first && labels[i] < first + length)
                .boxed()
                .sorted(Comparator.comparingLong(i -> labels[i]))
                .mapToLong(Integer::longValue)
                .toArray();
    }

    /** Returns the first place in {@link #classes} of a class that is not before a given one. */
    int from(long start) {
        int found = Arrays.binarySearch(classes, start);
        if (found < 0) {
            return -found - 1;
        }
        while (found > 0 && classes[found - 1] == start) {
            found--; // several rows may have one label
        }
        return found;
    }
}
