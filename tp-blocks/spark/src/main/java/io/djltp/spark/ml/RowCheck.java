package io.djltp.spark.ml;

import io.djltp.spark.InterruptibleJob;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;

import java.io.Serializable;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

/**
 * What a pass over the rows finds, before any rank is started: how many there are in each
 * partition, and the first one that cannot be trained with.
 */
final class RowCheck {

    private static final int SHOWN = 300; // characters of a row

    private RowCheck() {}

    /**
     * What is known of a partition.
     *
     * @param rows the number of its rows
     * @param width the length of the features
     * @param largest the largest label
     * @param checksum tells its rows from others
     * @param problem what is wrong with its first bad row, or {@code null}
     */
    private record Facts(long rows, int width, double largest, long checksum, String problem)
            implements Serializable {}

    /**
     * What is known of all rows.
     *
     * @param starts the number of the first row of each partition
     * @param checksums tell the rows of each partition from others
     * @param rows the number of rows
     * @param width the length of the features
     * @param classes the number of classes
     */
    record Result(long[] starts, long[] checksums, long rows, int width, int classes)
            implements Serializable {

        /** Returns what tells all rows, in their partitions, from others. */
        long checksum() {
            return Arrays.hashCode(checksums);
        }
    }

    /**
     * Reads all rows once.
     *
     * @param rows the rows
     * @param columns their columns
     * @param classes the number of classes, or 0 for one more than the largest label
     */
    static Result of(JavaRDD<Row> rows, Columns columns, int classes) {
        JavaRDD<Facts> checks =
                rows.mapPartitionsWithIndex(
                        (partition, part) ->
                                List.of(check(part, partition, columns, classes)).iterator(),
                        false);
        List<Facts> all = InterruptibleJob.run(rows.context(), checks::collect);
        long[] starts = new long[all.size()];
        long[] checksums = new long[all.size()];
        long count = 0;
        int width = -1;
        double largest = -1;
        for (int i = 0; i < starts.length; i++) {
            Facts facts = all.get(i);
            if (facts.problem() == null
                    && width >= 0
                    && facts.rows() > 0
                    && facts.width() != width) {
                throw new IllegalArgumentException(
                        ("The features of partition %d have %d values, those before it %d: all"
                                        + " rows need as many")
                                .formatted(i, facts.width(), width));
            }
            if (facts.problem() != null) {
                throw new IllegalArgumentException(facts.problem());
            }
            starts[i] = count;
            checksums[i] = facts.checksum();
            count += facts.rows();
            width = facts.rows() > 0 ? facts.width() : width;
            largest = Math.max(largest, facts.largest());
        }
        if (count == 0) {
            throw new IllegalArgumentException(
                    "The DataFrame is empty: there is nothing to train with");
        }
        int found = classes > 0 ? classes : (int) largest + 1;
        return new Result(starts, checksums, count, width, found);
    }

    private static Facts check(Iterator<Row> rows, int partition, Columns columns, int classes) {
        long count = 0;
        int width = -1;
        double largest = -1;
        int[] bits = {};
        RowChecksum sum = new RowChecksum();
        while (rows.hasNext()) {
            Row row = rows.next();
            int own = columns.width(row);
            String problem = own < 0 ? "has no features" : null;
            if (own == 0) {
                problem = "has features of length 0: they need 1 value or more (setFeaturesCol)";
            }
            if (own >= 0 && width < 0) {
                width = own;
                bits = new int[width];
            }
            if (problem == null && own != width) {
                problem = "has " + own + " features, those before it " + width;
            }
            if (problem == null) {
                String wrong = columns.read(row, bits);
                problem = wrong == null ? problem(columns.label(row), classes) : "is bad: " + wrong;
            }
            if (problem != null) {
                String text = row.toString();
                text = text.length() > SHOWN ? text.substring(0, SHOWN) + "..." : text;
                return new Facts(
                        count,
                        width,
                        largest,
                        sum.value(),
                        "Row "
                                + count
                                + " of partition "
                                + partition
                                + " "
                                + problem
                                + ": "
                                + text);
            }
            largest = Math.max(largest, columns.label(row));
            sum.add(bits, columns.label(row));
            count++;
        }
        return new Facts(count, width, largest, sum.value(), null);
    }

    private static String problem(double label, int classes) {
        if (Double.isNaN(label)) {
            return "has no label";
        }
        int most = classes > 0 ? classes : Integer.MAX_VALUE - 1;
        if (label == Math.rint(label) && label >= 0 && label < most) {
            return null;
        }
        return "has the label "
                + label
                + ", which is no class: there are "
                + (classes > 0 ? classes + ", from 0 to " + (classes - 1) : "those from 0 on")
                + " (setNumClasses)";
    }
}
