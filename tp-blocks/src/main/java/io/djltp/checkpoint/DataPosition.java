package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;

import com.google.gson.JsonObject;

import java.io.IOException;
import java.util.Iterator;
import java.util.concurrent.ExecutorService;

/**
 * Where a training is in its data: the epoch, how many of its batches are done, and the random
 * numbers that its order follows from.
 *
 * <p>An epoch that is resumed is begun with the random numbers that it was begun with, so that it
 * has the same order; what is drawn after that goes on from the numbers at the checkpoint.
 */
final class DataPosition {

    private long epoch;
    private long batches; // of the epoch, that are done or at work
    private boolean begun; // whether the order of the epoch is drawn
    private long epochRandom; // when the epoch began
    private BatchOrder order = new BatchOrder(0);
    private boolean resumed; // and nothing drawn since
    private long random; // at the checkpoint

    /** Returns the number of the running epoch, from 0. */
    long epoch() {
        return epoch;
    }

    /** Returns how many batches of the epoch are done. */
    long batches() {
        return batches;
    }

    /** Returns whether batches of the epoch were asked for, in this process. */
    boolean isRunning() {
        return begun && !resumed;
    }

    /**
     * Begins or resumes the running epoch.
     *
     * @throws IllegalStateException if the batches that were done are not those that they were
     */
    Iterator<Batch> begin(Dataset dataset, NDManager manager, ExecutorService executor)
            throws IOException, TranslateException {
        boolean again = resumed && begun;
        if (resumed) {
            DataRandom.restore(again ? epochRandom : random);
        }
        if (!again) {
            epochRandom = DataRandom.state();
            order = new BatchOrder(0);
        }
        SkippedBatches skipped = new SkippedBatches(dataset, epoch, batches);
        Iterator<Batch> left = skipped.begin(manager, executor);
        if (again) {
            checkOrder(skipped);
            DataRandom.restore(random);
        }
        begun = true;
        resumed = false;
        return left;
    }

    private void checkOrder(SkippedBatches skipped) {
        long checksum = skipped.checksum();
        if (checksum >= 0 && checksum != order.checksum()) {
            throw new IllegalStateException(
                    "The first "
                            + batches
                            + " batches of epoch "
                            + epoch
                            + " are not those that the checkpoint has seen: resume with the data"
                            + " and the batch size of the run before. A dataset whose order"
                            + " does not follow from Engine.setRandomSeed(...) has to implement "
                            + ResumableDataset.class.getSimpleName());
        }
    }

    /** Notes a batch that training gets next. */
    void add(Batch batch) {
        order.add(batch);
        batches++;
    }

    /** Notes that the epoch is over. */
    void endEpoch() {
        epoch++;
        batches = 0;
        begun = false;
    }

    JsonObject save() {
        JsonObject saved = new JsonObject();
        saved.addProperty("epoch", epoch);
        saved.addProperty("batches", batches);
        saved.addProperty("order", order.checksum());
        saved.addProperty("begun", begun);
        saved.addProperty("epoch_random", epochRandom);
        saved.addProperty("random", DataRandom.state());
        return saved;
    }

    void restore(JsonObject saved) {
        epoch = saved.get("epoch").getAsLong();
        batches = saved.get("batches").getAsLong();
        order = new BatchOrder(saved.get("order").getAsLong());
        epochRandom = saved.get("epoch_random").getAsLong();
        begun = saved.get("begun").getAsBoolean();
        random = saved.get("random").getAsLong();
        resumed = true;
        DataRandom.restore(random); // for loops that draw without a dataset
    }
}
