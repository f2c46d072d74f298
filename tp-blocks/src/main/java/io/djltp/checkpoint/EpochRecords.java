package io.djltp.checkpoint;

import ai.djl.metric.Metrics;
import ai.djl.training.Trainer;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * How the epochs that are over ended, and how DJL's listeners learn of it in another process. They
 * keep what they count to themselves: the number of epochs, how many of them brought no
 * improvement. So they are told once more of every epoch, with the figures that it had.
 */
final class EpochRecords {

    private static final String PROGRESS = "progressUpdateFrequency";
    private static final List<Class<?>> COUNTING =
            List.of(
                    EpochTrainingListener.class,
                    LoggingTrainingListener.class,
                    EarlyStoppingListener.class);

    private final List<Map<String, Float>> epochs = new ArrayList<>();

    /** Notes the figures of an epoch that is over, after DJL's listeners have them. */
    void add(Trainer trainer) {
        Map<String, Float> figures = new TreeMap<>();
        for (TrainingListener listener : listeners(trainer)) {
            if (listener instanceof EvaluatorTrainingListener) {
                figures.putAll(((EvaluatorTrainingListener) listener).getLatestEvaluations());
            }
        }
        epochs.add(figures);
    }

    /**
     * Tells DJL's listeners of the epochs that are over, and of the batches of the running one.
     *
     * @param trainer the trainer
     * @param batches the number of batches
     * @throws EarlyStoppingListener.EarlyStoppedException if training would have ended there, as it
     *     may under a stricter rule than before
     */
    void replay(Trainer trainer, long batches) {
        List<TrainingListener> listeners = listeners(trainer);
        Metrics metrics = trainer.getMetrics();
        try {
            trainer.setMetrics(null); // the times of this process are not those of the epochs
            for (Map<String, Float> figures : epochs) {
                for (TrainingListener listener : listeners) {
                    if (listener instanceof EvaluatorTrainingListener) {
                        ((EvaluatorTrainingListener) listener)
                                .getLatestEvaluations()
                                .putAll(figures);
                    } else if (COUNTING.contains(listener.getClass())) {
                        listener.onEpoch(trainer);
                    }
                }
            }
            // where there are metrics, every fifth batch shows progress, or another number
            trainer.setMetrics(metrics == null ? null : new Metrics());
            BatchData nothing = new BatchData(null, Map.of(), Map.of());
            for (TrainingListener listener : listeners) {
                if (metrics != null && listener.getClass() == EvaluatorTrainingListener.class) {
                    long shown = batches % progressEvery(listener); // it counts no further
                    for (long i = 0; i < shown; i++) {
                        listener.onTrainingBatch(trainer, nothing);
                    }
                }
            }
        } finally {
            trainer.setMetrics(metrics);
        }
    }

    /** Returns after how many batches a listener shows progress, which it keeps to itself. */
    private static int progressEvery(TrainingListener listener) {
        try {
            Field field = EvaluatorTrainingListener.class.getDeclaredField(PROGRESS);
            field.setAccessible(true);
            return Math.max(1, field.getInt(listener)); // below 1 it never does
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(
                    "When DJL's EvaluatorTrainingListener shows progress cannot be read: this"
                            + " library needs the version of DJL that it is built with",
                    e);
        }
    }

    /** Returns the listeners of a trainer, in their order. */
    static List<TrainingListener> listeners(Trainer trainer) {
        List<TrainingListener> listeners = new ArrayList<>();
        trainer.notifyListeners(listeners::add);
        return listeners;
    }

    JsonArray save() {
        JsonArray all = new JsonArray();
        for (Map<String, Float> figures : epochs) {
            JsonObject object = new JsonObject();
            figures.forEach((name, value) -> object.add(name, EvaluatorTotals.exact(value)));
            all.add(object);
        }
        return all;
    }

    /** Reads the figures of each epoch that {@link #save} has noted. */
    static List<Map<String, Float>> read(SavedMembers saved) throws CheckpointException {
        List<Map<String, Float>> epochs = new ArrayList<>();
        for (String epoch : saved.names()) {
            SavedMembers figures = saved.object(epoch);
            Map<String, Float> read = new TreeMap<>();
            for (String name : figures.names()) {
                read.put(name, figures.single(name));
            }
            epochs.add(read);
        }
        return epochs;
    }

    void restore(List<Map<String, Float>> saved) {
        epochs.clear();
        epochs.addAll(saved);
    }
}
