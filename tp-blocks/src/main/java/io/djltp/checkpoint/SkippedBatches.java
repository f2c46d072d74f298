package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Sampler;
import ai.djl.translate.TranslateException;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.lang.reflect.Field;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.function.LongUnaryOperator;

/**
 * Begins a pass over a dataset at some batch, with as little work as the dataset allows:
 *
 * <ul>
 *   <li>a {@link ResumableDataset} is told where to begin
 *   <li>of a {@link RandomAccessDataset} of DJL the sampler draws the order of the whole pass, and
 *       what was done is left out of it: no record is read
 *   <li>of any other the batches that were done are read once more, and dropped
 * </ul>
 */
final class SkippedBatches {

    private static final Logger logger = LoggerFactory.getLogger(SkippedBatches.class);

    private final Dataset dataset;
    private final long epoch;
    private final long count;
    private BatchOrder order; // of those that were skipped, or null where they cannot be known

    /**
     * Plans to begin a pass.
     *
     * @param dataset the dataset
     * @param epoch the number of the pass
     * @param count how many batches are skipped
     */
    SkippedBatches(Dataset dataset, long epoch, long count) {
        this.dataset = dataset;
        this.epoch = epoch;
        this.count = count;
        this.order = new BatchOrder(0);
    }

    /** Returns the batches after those that are skipped. */
    Iterator<Batch> begin(NDManager manager, ExecutorService executor)
            throws IOException, TranslateException {
        if (dataset instanceof ResumableDataset) {
            order = count == 0 ? order : null;
            return ((ResumableDataset) dataset).getData(manager, executor, epoch, count).iterator();
        }
        Sampler sampler = count > 0 ? samplerOf(dataset) : null;
        if (sampler != null) {
            return ((RandomAccessDataset) dataset)
                    .getData(manager, skipping(sampler), executor)
                    .iterator();
        }
        Iterator<Batch> batches = dataset.getData(manager, executor).iterator();
        LongUnaryOperator numbers = RecordNumbers.of(dataset); // which is prepared now
        for (long i = 0; i < count; i++) {
            if (!batches.hasNext()) {
                throw tooFew(i);
            }
            try (Batch batch = batches.next()) {
                order.add(batch, numbers);
            }
        }
        return batches;
    }

    /** Returns the checksum of the batches that were skipped, or -1 if nobody knows them. */
    long checksum() {
        return order == null ? -1 : order.checksum();
    }

    private Sampler skipping(Sampler sampler) {
        return new Sampler() {
            @Override
            public Iterator<List<Long>> sample(RandomAccessDataset records) {
                LongUnaryOperator numbers = RecordNumbers.of(dataset);
                Iterator<List<Long>> batches = sampler.sample(records);
                for (long i = 0; i < count; i++) {
                    if (!batches.hasNext()) {
                        throw tooFew(i);
                    }
                    order.add(batches.next(), numbers);
                }
                return batches;
            }

            @Override
            public int getBatchSize() {
                return sampler.getBatchSize();
            }
        };
    }

    private IllegalArgumentException tooFew(long batches) {
        return new IllegalArgumentException(
                "The checkpoint was taken after batch "
                        + count
                        + " of epoch "
                        + epoch
                        + ", and the training set has "
                        + batches
                        + ": resume with the data and the batch size of the run before");
    }

    /** A dataset says its sampler to its subclasses alone. */
    private static Sampler samplerOf(Dataset dataset) {
        if (!(dataset instanceof RandomAccessDataset)) {
            return null;
        }
        try {
            Field field = RandomAccessDataset.class.getDeclaredField("sampler");
            field.setAccessible(true);
            return (Sampler) field.get(dataset);
        } catch (ReflectiveOperationException | RuntimeException e) {
            logger.debug("The sampler of {} cannot be had: its batches are read", dataset, e);
            return null;
        }
    }
}
