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
        long[] starts = known.starts();
        int width = known.width();
        JavaRDD<Tuple2<Long, byte[]>> keyed =
                rows.mapPartitionsWithIndex(
                        (partition, part) ->
                                new Iterator<>() {
                                    private long number = starts[partition];
                                    private final int[] bits = new int[width];

                                    @Override
                                    public boolean hasNext() {
                                        return part.hasNext();
                                    }

                                    @Override
                                    public Tuple2<Long, byte[]> next() {
                                        Row row = part.next();
                                        byte[] record = record(row, columns, bits);
                                        long key = number % ranks << RANK | number / ranks;
                                        number++;
                                        return new Tuple2<>(key, record);
                                    }
                                },
                        false);
        return JavaPairRDD.fromJavaRDD(keyed)
                .repartitionAndSortWithinPartitions(new ByRank(ranks / tasks, tasks))
                .map(pair -> new Tuple2<>(pair._1(), pair._2()));
    }

    private static byte[] record(Row row, Columns columns, int[] bits) {
        columns.read(row, bits);
        ByteBuffer record = ByteBuffer.allocate(RowFile.recordBytes(bits.length));
        record.asIntBuffer().put(bits);
        record.putLong(bits.length * Integer.BYTES, (long) columns.label(row));
        return record.array();
    }

    /** Returns the rank of a row. */
    static int rankOf(long key) {
        return (int) (key >>> RANK);
    }

    /** Returns how many of some rows a rank has. */
    static long rowsOf(int rank, int ranks, long rows) {
        return rows / ranks + (rank < rows % ranks ? 1 : 0);
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
