package io.djltp.spark.ml;

import io.djltp.spark.InterruptibleJob;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;

import java.io.Serializable;
import java.util.Arrays;
import java.util.List;

/**
 * What a pass over the rows finds, before any rank is started: how many there are in each
 * partition, and the first one that cannot be trained with.
 */
final class RowCheck {

    private RowCheck() {}

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

        /** What is known of rows before they are read: there may be as many classes as can be. */
        static final Result UNREAD = new Result(new long[0], new long[0], 0, 1, Integer.MAX_VALUE);

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
        JavaRDD<PartitionCheck.AgreedSettings> checks =
                rows.mapPartitionsWithIndex(
                        (partition, part) ->
                                List.of(new PartitionCheck(columns, classes).of(part, partition))
                                        .iterator(),
                        false);
        List<PartitionCheck.AgreedSettings> all = InterruptibleJob.collect(checks);
        long[] starts = new long[all.size()];
        long[] checksums = new long[all.size()];
        long count = 0;
        int width = -1;
        double largest = -1;
        for (int i = 0; i < starts.length; i++) {
            PartitionCheck.AgreedSettings facts = all.get(i);
            if (facts.problem() != null) {
                throw new IllegalArgumentException(facts.problem());
            }
            if (width >= 0 && facts.rows() > 0 && facts.width() != width) {
                throw new IllegalArgumentException(
                        ("The features of partition %d have %d values, those before it %d: all"
                                        + " rows need as many")
                                .formatted(i, facts.width(), width));
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
}
