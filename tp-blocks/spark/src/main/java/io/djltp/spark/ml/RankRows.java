package io.djltp.spark.ml;

import org.apache.spark.Partitioner;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Row;

import scala.Tuple2;

import java.nio.ByteBuffer;
import java.util.Iterator;

/**
 * Brings every row to its rank: row i, counted over all partitions in their order, to rank i mod
 * ranks. Spark's shuffle carries it from executor to executor, and puts the rows of a task into the
 * order of (rank, i), so that nothing depends on which came first.
 */
final class RankRows {

    private static final int RANK = 40; // bits below are the place among the rank's rows

    private RankRows() {}

    /** Returns the rows, a partition for each task, as {@link RowFile} has them. */
    static JavaRDD<Tuple2<Long, byte[]>> of(
            JavaRDD<Row> rows, Columns columns, RowCheck.Result known, int ranks, int tasks) {
        JavaRDD<Tuple2<Long, byte[]>> keyed =
                rows.mapPartitionsWithIndex(
                        (partition, part) -> new KeyedRows(part, columns, known, partition, ranks),
                        false);
        return JavaPairRDD.fromJavaRDD(keyed)
                .repartitionAndSortWithinPartitions(new ByRank(ranks / tasks, tasks))
                .map(pair -> new Tuple2<>(pair._1(), pair._2()));
    }

    /** Returns the rank of a row. */
    static int rankOf(long key) {
        return (int) (key >>> RANK);
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
        private final int ranks;
        private final int partition;
        private final long expected; // checksum
        private final RowCheck.RowChecksum sum = new RowCheck.RowChecksum();
        private final int[] bits;
        private long number;

        KeyedRows(
                Iterator<Row> rows,
                Columns columns,
                RowCheck.Result known,
                int partition,
                int ranks) {
            this.rows = rows;
            this.columns = columns;
            this.ranks = ranks;
            this.partition = partition;
            expected = known.checksums()[partition];
            number = known.starts()[partition];
            bits = new int[known.width()];
        }

        @Override
        public boolean hasNext() {
            if (rows.hasNext()) {
                return true;
            }
            if (sum.value() != expected) {
                throw new IllegalStateException(
                        "Partition "
                                + partition
                                + " of the DataFrame has other rows, or another order of them, than"
                                + " when they were counted: rows that change from one reading to"
                                + " the next, as after a shuffle whose executor was lost, have to"
                                + " be kept in a file, or with checkpoint()");
            }
            return false;
        }

        @Override
        public Tuple2<Long, byte[]> next() {
            Row row = rows.next();
            columns.read(row, bits);
            sum.add(bits, columns.label(row));
            ByteBuffer record = ByteBuffer.allocate(RowFile.recordBytes(bits.length));
            record.asIntBuffer().put(bits);
            record.putLong(bits.length * Integer.BYTES, (long) columns.label(row));
            long key = number % ranks << RANK | number / ranks;
            number++;
            return new Tuple2<>(key, record.array());
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
            return rankOf((Long) key) / ranksPerTask;
        }
    }
}
