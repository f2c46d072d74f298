package io.djltp.spark.ml;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.spark.SparkRanks;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Iterator;
import java.util.NoSuchElementException;
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

    private final TrainingPlan plan;
    private final SparkRanks ranks;
    private final RowFile file;
    private final LabelGather labels;
    private int epoch;

    RankBatches(TrainingPlan plan, SparkRanks ranks, RowFile file, LabelGather labels) {
        this.plan = plan;
        this.ranks = ranks;
        this.file = file;
        this.labels = labels;
    }

    /** Returns the batches of the next epoch. */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        return getData(manager, null, epoch++, 0);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(
            NDManager manager, ExecutorService executor, long number, long firstBatch) {
        return () -> new Epoch(manager, Math.toIntExact(number), firstBatch);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) {
        // the rows are there
    }

    /** An epoch. */
    private final class Epoch implements Iterator<Batch> {

        private final NDManager manager;
        private final int[][] orders = new int[ranks.getLocalRanks()][];
        private final ByteBuffer record;
        private long done; // batches

        Epoch(NDManager manager, int epoch, long firstBatch) {
            this.manager = manager;
            done = firstBatch;
            record = ByteBuffer.allocate(RowFile.recordBytes(plan.network().width()));
            for (int i = 0; i < orders.length; i++) {
                int rank = ranks.getFirstRank() + i;
                long rows = RankRows.rowsOf(rank, ranks.getRanks(), plan.rows());
                orders[i] = EpochOrder.of(rows, plan.seed(), epoch, rank);
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
                return batch(Math.min(plan.batchSize(), plan.rows() - done * plan.batchSize()));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        private Batch batch(long rows) throws IOException {
            int size = ranks.getRanks();
            int width = plan.network().width();
            int first = ranks.getFirstRank();
            long from = firstRow(first, rows);
            int own = (int) (firstRow(first + orders.length, rows) - from);
            ByteBuffer values = ByteBuffer.allocateDirect(own * width * Integer.BYTES);
            values.order(ByteOrder.nativeOrder());
            long[] ownLabels = new long[own];
            long start = 0; // of a rank's rows in the file
            int row = 0;
            for (int i = 0; i < orders.length; i++) {
                long share = RankRows.rowsOf(first + i, size, rows);
                int before = (int) (done * plan.batchSize() / size);
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
            NDArray data = data(scope, values.flip(), rows, from, own);
            NDArray all = scope.create(labels.gather(ownLabels, rows));
            return new Batch(
                    scope,
                    new NDList(data),
                    new NDList(all),
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

        private NDArray data(NDManager scope, ByteBuffer values, long rows, long from, int own) {
            NDArray data = scope.zeros(plan.network().inputShape(rows), plan.network().inputType());
            if (own > 0) {
                try (NDArray mine =
                        scope.create(
                                values,
                                plan.network().inputShape(own),
                                plan.network().inputType())) {
                    if (own == rows) {
                        mine.copyTo(data);
                    } else {
                        data.set(new NDIndex().addSliceDim(from, from + own), mine);
                    }
                }
            }
            return data;
        }
    }
}
