package io.djltp.spark.ml;

import io.djltp.spark.InterruptibleJob;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.zip.CRC32C;

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
        JavaRDD<PartitionCheck.Facts> checks =
                rows.mapPartitionsWithIndex(
                        (partition, part) ->
                                List.of(new PartitionCheck(columns, classes).of(part, partition))
                                        .iterator(),
                        false);
        List<PartitionCheck.Facts> all = InterruptibleJob.collect(checks);
        long[] starts = new long[all.size()];
        long[] checksums = new long[all.size()];
        long count = 0;
        int width = -1;
        double largest = -1;
        for (int i = 0; i < starts.length; i++) {
            PartitionCheck.Facts facts = all.get(i);
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

    /** Reads the rows of one partition up to the first one that cannot be trained with. */
    private static final class PartitionCheck {

        private static final int SHOWN = 300; // characters of a row

        private final Columns columns;
        private final int classes; // or 0: one more than the largest label
        private final RowChecksum sum = new RowChecksum();
        private long count;
        private int width = -1; // that of the first row
        private int[] bits; // of the features of a row
        private double largest = -1;

        PartitionCheck(Columns columns, int classes) {
            this.columns = columns;
            this.classes = classes;
        }

        /**
         * What is known of a partition.
         *
         * @param rows the number of its rows
         * @param width the length of the features
         * @param largest the largest label
         * @param checksum tells its rows from others
         * @param problem what is wrong with its first bad row, or {@code null}
         */
        record Facts(long rows, int width, double largest, long checksum, String problem)
                implements Serializable {}

        /** Reads the rows. */
        Facts of(Iterator<Row> rows, int partition) {
            String problem = null;
            while (problem == null && rows.hasNext()) {
                Row row = rows.next();
                String wrong = problem(row);
                if (wrong == null) {
                    add(columns.label(row));
                } else {
                    problem =
                            "Row %d of partition %d %s: %s"
                                    .formatted(count, partition, wrong, shown(row));
                }
            }
            return new Facts(count, width, largest, sum.value(), problem);
        }

        /** Adds the row whose features were read last. */
        private void add(double label) {
            largest = Math.max(largest, label);
            sum.add(bits, label);
            count++;
        }

        /** Reads the features of a row, and returns what is wrong with it, or {@code null}. */
        private String problem(Row row) {
            int own = columns.width(row);
            if (own < 0) {
                return "has no features";
            }
            if (own == 0) {
                return "has features of length 0: they need 1 value or more (setFeaturesCol)";
            }
            if (width < 0) {
                width = own;
                bits = new int[width];
            }
            if (own != width) {
                return "has " + own + " features, those before it " + width;
            }
            String wrong = columns.read(row, bits);
            return wrong == null ? problem(columns.label(row)) : "is bad: " + wrong;
        }

        private String problem(double label) {
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

        private static String shown(Row row) {
            String text = row.toString();
            return text.length() > SHOWN ? text.substring(0, SHOWN) + "..." : text;
        }
    }

    /** Tells the rows of a partition, in their order, from others. */
    static final class RowChecksum {

        private final CRC32C sum = new CRC32C();
        private ByteBuffer buffer = ByteBuffer.allocate(0);

        /** Adds the row that follows. */
        void add(int[] features, double label) {
            int bytes = features.length * Integer.BYTES + Double.BYTES;
            if (buffer.capacity() < bytes) {
                buffer = ByteBuffer.allocate(bytes);
            }
            buffer.clear();
            buffer.asIntBuffer().put(features);
            buffer.putDouble(bytes - Double.BYTES, label);
            sum.update(buffer.limit(bytes));
        }

        long value() {
            return sum.getValue();
        }
    }
}
