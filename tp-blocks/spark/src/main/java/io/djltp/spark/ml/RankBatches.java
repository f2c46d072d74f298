package io.djltp.spark.ml;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.rank.RankPool;
import io.djltp.spark.SparkRanks;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import scala.Tuple2;

import java.io.BufferedOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.stream.LongStream;

/**
 * The batches of a task: of each it has the rows of its own ranks, and the labels of all rows.
 * Where the rows of other ranks are, there are zeros, which no rank of this task reads in MIXED
 * mode. All tasks make the same number of batches, of the same numbers of rows.
 *
 * <p>Of a batch of B rows every rank has B divided by the ranks; the last batch of an epoch is what
 * is left.
 */
final class RankBatches implements ResumableDataset {

    private static final long EPOCHS = 0x9E3779B97F4A7C15L; // apart, however they follow each other
    private static final long RANKS = 0xC2B2AE3D27D4EB4FL;

    private final TrainingPlan plan;
    private final SparkRanks ranks;
    private final RowFile file;
    private final RankPool pool;
    private final NDManager manager;
    private int epoch;

    RankBatches(TrainingPlan plan, SparkRanks ranks, RowFile file, ParallelTrainer trainer) {
        this.plan = plan;
        this.ranks = ranks;
        this.file = file;
        pool = trainer.getRanks();
        manager = trainer.getManager();
    }

    /**
     * Shuffles the rows of a rank. The order follows from the arguments, in any Java.
     *
     * @param rows how many rows the rank has
     * @param seed the seed of the training
     * @param epoch the epoch, from 0
     * @param rank the rank
     * @return the numbers of its rows
     */
    static int[] order(long rows, long seed, int epoch, int rank) {
        int[] order = new int[Math.toIntExact(rows)];
        Random random = new Random(seed + EPOCHS * (epoch + 1) + RANKS * (rank + 1));
        for (int i = 0; i < order.length; i++) {
            int j = random.nextInt(i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        return order;
    }

    /** Returns the batches of the next epoch. */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        return getData(manager, null, epoch++, 0);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(
            NDManager manager, @Nullable ExecutorService executor, long number, long firstBatch) {
        return () -> new Epoch(manager, Math.toIntExact(number), firstBatch);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) {
        // the rows are there
    }

    /**
     * Returns the labels of a batch on all ranks, which the loss of a head over all of them needs:
     * an all-gather of 8 bytes a label, and where rows have several, one of 8 bytes a row before.
     *
     * @param own those of the rows of this task's ranks
     * @param rows the rows of the batch
     */
    private NDArray labels(NDManager scope, long[][] own, long rows) {
        long[] shares = new long[pool.getWorldSize()];
        Arrays.setAll(shares, rank -> KnownRows.rowsOf(rank, shares.length, rows));
        long[] flat = Arrays.stream(own).flatMapToLong(LongStream::of).toArray();
        if (!plan.many()) {
            return scope.create(gather(flat, shares));
        }
        long[] counts = gather(Arrays.stream(own).mapToLong(each -> each.length).toArray(), shares);
        int row = 0;
        for (int rank = 0; rank < shares.length; rank++) {
            int end = row + (int) shares[rank];
            shares[rank] = Arrays.stream(counts, row, end).sum();
            row = end;
        }
        long[] all = gather(flat, shares);
        int width = (int) Math.max(1, LongStream.of(counts).max().orElse(1));
        long[] labels = new long[counts.length * width];
        Arrays.fill(labels, -1);
        for (int i = 0, at = 0; i < counts.length; at += (int) counts[i], i++) {
            System.arraycopy(all, at, labels, i * width, (int) counts[i]);
        }
        return scope.create(labels, new Shape(rows, width));
    }

    /**
     * Gathers numbers of all ranks.
     *
     * @param own those of the ranks of this task
     * @param shares how many each rank has
     */
    private long[] gather(long[] own, long[] shares) {
        if (!pool.isDistributed()) {
            return own;
        }
        int[] starts = new int[pool.size() + 1];
        for (int i = 0; i < pool.size(); i++) {
            starts[i + 1] = starts[i] + (int) shares[pool.getContext(i).getRank()];
        }
        return pool.run(
                        context -> {
                            int local = context.getLocalIndex();
                            long[] mine = Arrays.copyOfRange(own, starts[local], starts[local + 1]);
                            try (NDManager scope = manager.newSubManager(context.getDevice())) {
                                return GatheredNumbers.of(
                                        context.getWorld(),
                                        scope,
                                        mine,
                                        shares,
                                        "the labels of the batch");
                            }
                        })
                .get(0);
    }

    /** An epoch. */
    private final class Epoch implements Iterator<Batch> {

        private final NDManager manager;
        private final int[][] orders = new int[ranks.getLocalRanks()][]; // of the ranks' rows
        private final int batchSize = plan.settings().getBatchSize();
        private long done; // batches

        Epoch(NDManager manager, int epoch, long firstBatch) {
            this.manager = manager;
            done = firstBatch;
            for (int i = 0; i < orders.length; i++) {
                int rank = ranks.getFirstRank() + i;
                long rows = KnownRows.rowsOf(rank, ranks.getRanks(), plan.rows());
                orders[i] = order(rows, plan.settings().getSeed(), epoch, rank);
            }
        }

        @Override
        public boolean hasNext() {
            return done < plan.batches();
        }

        @Override
        public Batch next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            try {
                return batch(Math.min(batchSize, plan.rows() - done * batchSize));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        private Batch batch(long rows) throws IOException {
            int size = ranks.getRanks();
            int first = ranks.getFirstRank();
            List<ByteBuffer> records = new ArrayList<>();
            int start = 0; // of a rank's rows in the file
            for (int i = 0; i < orders.length; i++) {
                long share = KnownRows.rowsOf(first + i, size, rows);
                int before = (int) (done * batchSize / size);
                for (int k = 0; k < share; k++) {
                    records.add(file.read(start + orders[i][before + k]));
                }
                start += orders[i].length;
            }
            NDManager scope = manager.newSubManager();
            NDList inputs =
                    plan.network().newInputs(scope, records, (int) firstRow(first, rows), rows);
            long[][] labels = new long[records.size()][];
            for (int i = 0; i < labels.length; i++) { // the rest of the records
                labels[i] = new long[records.get(i).remaining() / Long.BYTES];
                records.get(i).asLongBuffer().get(labels[i]);
            }
            return new Batch(
                    scope,
                    inputs,
                    new NDList(labels(scope, labels, rows)),
                    (int) rows,
                    Batchifier.STACK,
                    Batchifier.STACK,
                    done++,
                    plan.batches());
        }

        /** Returns where the rows of a rank begin in a batch, as a balanced cut has it. */
        private long firstRow(int rank, long rows) {
            int size = ranks.getRanks();
            return rank * (rows / size) + Math.min(rank, rows % size);
        }
    }

    /**
     * The rows of a task, in a file of its executor: the Java heap holds none of them, but 8 bytes
     * each for where they end.
     */
    static final class RowFile implements AutoCloseable {

        private static final int BUFFER = 1 << 20;

        private final FileChannel channel;
        private final long[] ends;

        /**
         * Writes a file, which ends with this object.
         *
         * @param folder where the file is
         * @param rows how many there are
         * @param records the records
         */
        RowFile(Path folder, int rows, Iterator<Tuple2<Long, byte[]>> records) throws IOException {
            ends = new long[rows];
            channel =
                    FileChannel.open(
                            Files.createTempFile(folder, "tp-rows", ".bin"),
                            StandardOpenOption.READ,
                            StandardOpenOption.WRITE,
                            StandardOpenOption.DELETE_ON_CLOSE);
            OutputStream out = new BufferedOutputStream(Channels.newOutputStream(channel), BUFFER);
            long end = 0;
            for (int row = 0; records.hasNext(); row++) {
                byte[] record = records.next()._2();
                out.write(record);
                end += record.length;
                ends[row] = end;
            }
            out.flush();
        }

        private ByteBuffer read(int row) throws IOException {
            long start = row == 0 ? 0 : ends[row - 1];
            ByteBuffer record = ByteBuffer.allocate((int) (ends[row] - start));
            while (record.hasRemaining()) {
                if (channel.read(record, start + record.position()) < 0) {
                    throw new EOFException("Row " + row + " is not in the file of the task");
                }
            }
            return record.flip();
        }

        /** Deletes the file. */
        @Override
        public void close() throws IOException {
            channel.close();
        }
    }
}
