package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;
import ai.djl.translate.TranslatorOptions;
import ai.djl.util.Progress;

import java.io.IOException;
import java.util.Iterator;
import java.util.concurrent.ExecutorService;

/**
 * A training set that goes on where a checkpoint was taken, and tells the listener when the step of
 * a batch is over: when the next batch is asked for. DJL's listeners are told before the step.
 */
final class ResumedData implements Dataset {

    private final Dataset dataset;
    private final CheckpointListener listener;

    ResumedData(Dataset dataset, CheckpointListener listener) {
        this.dataset = dataset;
        this.listener = listener;
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(NDManager manager) throws IOException, TranslateException {
        return getData(manager, null);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(NDManager manager, ExecutorService executor)
            throws IOException, TranslateException {
        DataPosition position = listener.beginEpoch();
        Iterator<Batch> batches = position.begin(dataset, manager, executor);
        Iterator<Batch> counted = new Counted(batches, position);
        return () -> counted; // once: its order is drawn
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) throws IOException, TranslateException {
        dataset.prepare(progress);
    }

    /** {@inheritDoc} */
    @Override
    public TranslatorOptions matchingTranslatorOptions() {
        return dataset.matchingTranslatorOptions();
    }

    /** The batches that are left. */
    private final class Counted implements Iterator<Batch> {

        private final Iterator<Batch> batches;
        private final DataPosition position;
        private boolean given; // a batch whose end was not told

        Counted(Iterator<Batch> batches, DataPosition position) {
            this.batches = batches;
            this.position = position;
        }

        @Override
        public boolean hasNext() {
            if (given) {
                given = false;
                listener.endStep();
            }
            boolean more = batches.hasNext();
            if (!more) {
                listener.endBatches();
            }
            return more;
        }

        @Override
        public Batch next() {
            Batch batch = batches.next();
            position.add(batch);
            given = true;
            return batch;
        }
    }
}
