package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.concurrent.ExecutorService;
import java.util.function.LongUnaryOperator;

/**
 * Where a training is in its data: the epoch, how many of its batches are done, and the random
 * numbers that its order follows from.
 *
 * <p>An epoch that is resumed is begun with the random numbers that it was begun with, so that it
 * has the same order; what is drawn after that goes on from the numbers at the checkpoint.
 */
final class DataPosition {

    private static final Logger logger = LoggerFactory.getLogger(DataPosition.class);

    private static final long UNKNOWN = -1;

    private long epoch;
    private long batches; // of the epoch, that are done or at work
    private boolean begun; // whether the order of the epoch is drawn
    private long epochRandom; // when the epoch began
    private BatchOrder order = new BatchOrder(0);
    private long records = UNKNOWN; // which the dataset has
    private LongUnaryOperator numbers; // of the dataset
    private boolean resumed; // and nothing drawn since
    private long random; // at the checkpoint

    /** Returns the number of the running epoch, from 0. */
    long epoch() {
        return epoch;
    }

    /**
     * Returns how many epochs are left, the running one included.
     *
     * @param epochs those of the whole training
     * @param folder the folder of the checkpoints, for the error
     * @throws IllegalArgumentException if the training is beyond them
     */
    int remainingEpochs(int epochs, Path folder) {
        long begunEpochs = epoch + (batches > 0 ? 1 : 0);
        if (begunEpochs > epochs) {
            String next = batches > 0 ? " and " + batches + " batches of the next" : "";
            throw new IllegalArgumentException(
                    ("The checkpoint in %s has trained for %d epochs%s, which is beyond the %d that"
                                    + " are asked for: ask for %d epochs or more, or choose another"
                                    + " folder")
                            .formatted(folder, epoch, next, epochs, begunEpochs));
        }
        return (int) (epochs - epoch);
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
        Iterator<Batch> left = skipped.begin(manager, executor); // which prepares the dataset
        compareRecords(dataset, resumed && !again);
        if (again) {
            checkOrder(skipped);
            DataRandom.restore(random);
        }
        begun = true;
        resumed = false;
        return left;
    }

    /** Between two epochs other data may be meant: that is said, and not refused. */
    private void compareRecords(Dataset dataset, boolean betweenEpochs) {
        long before = records;
        records = RecordNumbers.checksum(dataset);
        numbers = RecordNumbers.of(dataset);
        if (betweenEpochs && before != UNKNOWN && before != records) {
            logger.warn(
                    "The epoch before the checkpoint was of other records than this one. Was the"
                            + " data split anew? Engine.setRandomSeed(...) before randomSplit(...)"
                            + " splits it alike");
        }
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
                            + " and the batch size of the run before. Data that randomSplit(...)"
                            + " splits need the same Engine.setRandomSeed(...) before it, and a"
                            + " dataset whose order does not follow from that has to implement "
                            + ResumableDataset.class.getSimpleName());
        }
    }

    /** Notes a batch that training gets next. */
    void add(Batch batch) {
        order.add(batch, numbers);
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
        saved.addProperty("records", records);
        saved.addProperty("begun", begun);
        saved.addProperty("epoch_random", epochRandom);
        saved.addProperty("random", DataRandom.state());
        return saved;
    }

    /** What {@link #save} has noted. */
    record Saved(
            long epoch,
            long batches,
            long order,
            long records,
            boolean begun,
            long epochRandom,
            long random) {}

    static Saved read(SavedMembers saved) throws CheckpointException {
        return new Saved(
                saved.whole("epoch", 0, Integer.MAX_VALUE),
                saved.whole("batches", 0, Long.MAX_VALUE),
                saved.whole("order"),
                saved.has("records") ? saved.whole("records") : UNKNOWN,
                saved.flag("begun"),
                saved.whole("epoch_random"),
                saved.whole("random"));
    }

    void restore(Saved saved) {
        epoch = saved.epoch();
        batches = saved.batches();
        order = new BatchOrder(saved.order());
        records = saved.records();
        epochRandom = saved.epochRandom();
        begun = saved.begun();
        random = saved.random();
        resumed = true;
        DataRandom.restore(random); // for loops that draw without a dataset
    }
}
