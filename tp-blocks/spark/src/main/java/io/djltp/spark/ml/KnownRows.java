package io.djltp.spark.ml;

import io.djltp.spark.InterruptibleJob;

import org.apache.spark.Partitioner;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;
import org.jspecify.annotations.Nullable;

import scala.Tuple2;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * What a pass over the rows has found, before any rank is started.
 *
 * @param starts the number of the first row of each partition
 * @param checksums tell the rows of each partition, in their order, from others
 * @param rows the number of rows
 * @param width the length of the features
 * @param classes the number of classes
 */
record KnownRows(long[] starts, long[] checksums, long rows, int width, int classes)
        implements Serializable {

    private static final int RANK = 40; // bits of a key below are the place among the rank's rows
    private static final int SHOWN = 300; // characters of a row

    /**
     * Reads all rows once.
     *
     * @param rows the rows
     * @param columns their columns
     * @param classes the number of classes, or 0 for one more than the largest label
     */
    static KnownRows read(JavaRDD<Row> rows, Columns columns, int classes) {
        JavaRDD<Part> read =
                rows.mapPartitionsWithIndex(
                        (number, part) ->
                                List.of(readPart(part, number, columns, classes)).iterator(),
                        false);
        List<Part> parts = InterruptibleJob.collect(read);
        long[] starts = new long[parts.size()];
        long count = 0;
        int width = -1;
        long largest = -1;
        for (int i = 0; i < starts.length; i++) {
            Part part = parts.get(i);
            if (part.problem != null) {
                throw new IllegalArgumentException(part.problem);
            }
            if (width >= 0 && part.rows > 0 && part.width != width) {
                throw new IllegalArgumentException(
                        ("The features of partition %d have %d values, those before it %d: all"
                                        + " rows need as many")
                                .formatted(i, part.width, width));
            }
            starts[i] = count;
            count += part.rows;
            width = part.rows > 0 ? part.width : width;
            largest = Math.max(largest, part.largest);
        }
        if (count == 0) {
            throw new IllegalArgumentException(
                    "The DataFrame is empty: there is nothing to train with");
        }
        long[] checksums = parts.stream().mapToLong(Part::checksum).toArray();
        int found = classes > 0 ? classes : (int) largest + 1;
        return new KnownRows(starts, checksums, count, width, found);
    }

    /**
     * What is known of a partition.
     *
     * @param rows the number of its rows
     * @param width the length of the features
     * @param largest the largest label, or -1
     * @param checksum tells its rows from others
     * @param problem what is wrong with its first bad row, or {@code null}
     */
    private record Part(long rows, int width, long largest, long checksum, @Nullable String problem)
            implements Serializable {}

    /** Reads the rows of a partition up to the first one that cannot be trained with. */
    private static Part readPart(Iterator<Row> rows, int number, Columns columns, int classes) {
        CRC32C sum = new CRC32C();
        int width = -1; // that of the first row
        long largest = -1;
        long count = 0;
        for (; rows.hasNext(); count++) {
            Row row = rows.next();
            int own = columns.width(row);
            width = width < 0 ? own : width;
            ByteBuffer record = own < 0 ? ByteBuffer.allocate(0) : columns.newRecord(row);
            String wrong = problem(row, columns, width, record);
            int labels = record.position();
            wrong = wrong == null ? columns.readLabels(row, classes, record) : wrong;
            if (wrong != null) {
                String text = row.toString();
                String shown = text.length() > SHOWN ? text.substring(0, SHOWN) + "..." : text;
                return new Part(
                        count,
                        width,
                        largest,
                        0,
                        "Row %d of partition %d %s: %s".formatted(count, number, wrong, shown));
            }
            if (record.position() > labels) {
                largest = Math.max(largest, record.getLong(record.position() - Long.BYTES));
            }
            sum.update(record.flip());
        }
        return new Part(count, width, largest, sum.getValue(), null);
    }

    /** Reads the features of a row, and returns what is wrong with them, or {@code null}. */
    private static @Nullable String problem(
            Row row, Columns columns, int width, ByteBuffer record) {
        int own = columns.width(row);
        if (own < 0) {
            return "has no features";
        }
        if (own == 0) {
            return "has features of length 0: they need 1 value or more (setFeaturesCol)";
        }
        if (own != width) {
            return "has " + own + " features, those before it " + width;
        }
        String wrong = columns.read(row, record);
        return wrong == null ? null : "is bad: " + wrong;
    }

    /** Returns what tells all rows, in their partitions, from others. */
    long checksum() {
        return Arrays.hashCode(checksums);
    }

    /**
     * Brings every row to its rank: row i, counted over all partitions in their order, to rank i
     * mod ranks. Spark's shuffle carries it from executor to executor, and puts the rows of a task
     * into the order of (rank, i), so that nothing depends on which came first.
     *
     * @return the records by their keys, a partition for each task
     */
    JavaRDD<Tuple2<Long, byte[]>> ofRanks(JavaRDD<Row> all, Columns columns, int ranks, int tasks) {
        JavaRDD<Tuple2<Long, byte[]>> keyed =
                all.mapPartitionsWithIndex(
                        (partition, part) -> new KeyedRows(part, columns, this, partition, ranks),
                        false);
        return JavaPairRDD.fromJavaRDD(keyed)
                .repartitionAndSortWithinPartitions(new ByRank(ranks / tasks, tasks))
                .rdd()
                .toJavaRDD();
    }

    /** Returns how many of some rows a rank has. */
    static long rowsOf(int rank, int ranks, long rows) {
        return rows / ranks + (rank < rows % ranks ? 1 : 0);
    }

    /**
     * The rows of a partition as records, each with its rank and its place there. They have to be
     * those that were checked, in the same order: what a rank learns from follows from it.
     */
    private static final class KeyedRows implements Iterator<Tuple2<Long, byte[]>> {

        private final Iterator<Row> rows;
        private final Columns columns;
        private final KnownRows known;
        private final int partition;
        private final int ranks;
        private final CRC32C sum = new CRC32C();
        private long number;

        KeyedRows(Iterator<Row> rows, Columns columns, KnownRows known, int partition, int ranks) {
            this.rows = rows;
            this.columns = columns;
            this.known = known;
            this.partition = partition;
            this.ranks = ranks;
            number = known.starts[partition];
        }

        @Override
        public boolean hasNext() {
            if (!rows.hasNext() && sum.getValue() != known.checksums[partition]) {
                throw new IllegalStateException(
                        "Partition "
                                + partition
                                + " of the DataFrame has other rows, or another order of them, than"
                                + " when they were counted: rows that change from one reading to"
                                + " the next, as after a shuffle whose executor was lost, have to"
                                + " be kept in a file, or with checkpoint()");
            }
            return rows.hasNext();
        }

        @Override
        public Tuple2<Long, byte[]> next() {
            Row row = rows.next();
            ByteBuffer record = columns.newRecord(row);
            columns.read(row, record);
            columns.readLabels(row, known.classes, record);
            sum.update(record.flip());
            byte[] bytes = Arrays.copyOf(record.array(), record.limit());
            long key = number % ranks << RANK | number / ranks;
            number++;
            return new Tuple2<>(key, bytes);
        }
    }

    /** Gives the rows of a task's ranks to the task. */
    private static final class ByRank extends Partitioner {

        private static final long serialVersionUID = 1L;

        private final int ranksPerTask;
        private final int tasks;

        ByRank(int ranksPerTask, int tasks) {
            this.ranksPerTask = ranksPerTask;
            this.tasks = tasks;
        }

        @Override
        public int numPartitions() {
            return tasks;
        }

        @Override
        public int getPartition(Object key) {
            return (int) ((Long) key >>> RANK) / ranksPerTask;
        }
    }
}
