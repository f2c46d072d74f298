package io.djltp.spark.ml;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
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
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Random;
import java.util.concurrent.ExecutorService;

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
     * Returns the labels of a batch on all ranks, in their order, which the loss of a head over all
     * of them needs: one all-gather of 8 bytes a row.
     *
     * @param own those of the ranks of this task
     * @param rows the rows of the batch
     */
    private long[] gather(long[] own, long rows) {
        if (!pool.isDistributed()) {
            return own;
        }
        long[] shares = new long[pool.getWorldSize()];
        Arrays.setAll(shares, rank -> KnownRows.rowsOf(rank, shares.length, rows));
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
        private final int width = plan.network().width();
        private final ByteBuffer record = ByteBuffer.allocate(KnownRows.recordBytes(width));
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
            long from = firstRow(first, rows);
            int own = (int) (firstRow(first + orders.length, rows) - from);
            ByteBuffer values = ByteBuffer.allocateDirect(own * width * Integer.BYTES);
            values.order(ByteOrder.nativeOrder());
            long[] ownLabels = new long[own];
            long start = 0; // of a rank's rows in the file
            int row = 0;
            for (int i = 0; i < orders.length; i++) {
                long share = KnownRows.rowsOf(first + i, size, rows);
                int before = (int) (done * batchSize / size);
                for (int k = 0; k < share; k++, row++) {
                    file.read(start + orders[i][before + k], record);
                    for (int j = 0; j < width; j++) {
                        values.putInt(record.getInt());
                    }
                    ownLabels[row] = record.getLong();
                }
                start += orders[i].length;
            }
            NDManager scope = manager.newSubManager();
            NDArray data = scope.zeros(plan.network().inputShape(rows), plan.network().inputType());
            if (own > 0) {
                try (NDArray mine =
                        scope.create(
                                values.flip(),
                                plan.network().inputShape(own),
                                data.getDataType())) {
                    data.set(new NDIndex().addSliceDim(from, from + own), mine);
                }
            }
            return new Batch(
                    scope,
                    new NDList(data),
                    new NDList(scope.create(gather(ownLabels, rows))),
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

    /** The rows of a task, in a file of its executor: the Java heap holds none of them. */
    static final class RowFile implements AutoCloseable {

        private static final int BUFFER = 1 << 20;

        private final FileChannel channel;
        private final int recordBytes;

        /**
         * Writes a file, which ends with this object.
         *
         * @param folder where the file is
         * @param width the number of features
         * @param records the records
         */
        RowFile(Path folder, int width, Iterator<Tuple2<Long, byte[]>> records) throws IOException {
            recordBytes = KnownRows.recordBytes(width);
            channel =
                    FileChannel.open(
                            Files.createTempFile(folder, "tp-rows", ".bin"),
                            StandardOpenOption.READ,
                            StandardOpenOption.WRITE,
                            StandardOpenOption.DELETE_ON_CLOSE);
            OutputStream out = new BufferedOutputStream(Channels.newOutputStream(channel), BUFFER);
            while (records.hasNext()) {
                out.write(records.next()._2());
            }
            out.flush();
        }

        private void read(long row, ByteBuffer record) throws IOException {
            record.clear();
            while (record.hasRemaining()) {
                if (channel.read(record, row * recordBytes + record.position()) < 0) {
                    throw new EOFException("Row " + row + " is not in the file of the task");
                }
            }
            record.flip();
        }

        /** Deletes the file. */
        @Override
        public void close() throws IOException {
            channel.close();
        }
    }
}
