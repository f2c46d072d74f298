package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.concurrent.ExecutorService;

/**
 * A dataset that can begin with any batch of any epoch, because the order of an epoch is a function
 * of its number (and of a seed, which the dataset knows). A {@link CheckpointListener} asks it for
 * what comes next, and no batch is read in vain; of other datasets it skips what was done.
 */
public interface ResumableDataset extends Dataset {

    /**
     * Returns the batches that are left of an epoch.
     *
     * @param manager the manager of the batches
     * @param executor the threads that may read ahead, or {@code null} for none
     * @param epoch the number of the epoch, from 0
     * @param firstBatch the number of the first batch in the epoch, from 0
     * @return the batches from this one on, none if the epoch has no more
     * @throws IOException if the data cannot be read
     * @throws TranslateException if the data cannot be prepared
     */
    Iterable<Batch> getData(
            NDManager manager, @Nullable ExecutorService executor, long epoch, long firstBatch)
            throws IOException, TranslateException;
}
