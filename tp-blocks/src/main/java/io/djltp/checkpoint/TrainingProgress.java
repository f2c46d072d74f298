package io.djltp.checkpoint;

import ai.djl.metric.Metrics;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * How far a training has come, beside the state of its trainer: the position in the data, the
 * epochs that are over, what evaluators and metrics have, and states of the user's own.
 */
final class TrainingProgress {

    private static final String EARLY_STOPPING = "earlyStoppingMillis";

    private final Map<String, Resumable> own;
    private final DataPosition position = new DataPosition();
    private final EpochRecords epochs = new EpochRecords();
    private JsonObject metrics; // to be restored when the trainer has some

    TrainingProgress(Map<String, Resumable> own) {
        this.own = own;
    }

    DataPosition position() {
        return position;
    }

    /** Notes the end of an epoch, after DJL's listeners. */
    void endEpoch(Trainer trainer) {
        epochs.add(trainer);
        position.endEpoch();
    }

    SavedProgress save(Trainer trainer) {
        return SavedProgress.of(() -> values(trainer));
    }

    private JsonObject values(Trainer trainer) {
        JsonObject saved = new JsonObject();
        saved.add("data", position.save());
        saved.add("epochs", epochs.save());
        saved.add(EARLY_STOPPING, EarlyStoppingTime.of(trainer));
        saved.add("evaluators", EvaluatorTotals.of(trainer.getEvaluators()));
        if (trainer.getMetrics() != null) {
            saved.add("metrics", SavedMetrics.of(trainer.getMetrics()));
        }
        JsonObject states = new JsonObject();
        resumable(trainer).forEach((name, each) -> states.add(name, stateOf(name, each)));
        saved.add("states", states);
        return saved;
    }

    /**
     * Checks that evaluators and states are those of a checkpoint. Nothing is changed.
     *
     * @throws IllegalArgumentException if they are not
     */
    void check(JsonObject saved, Trainer trainer) {
        EvaluatorTotals.check(saved.getAsJsonArray("evaluators"), trainer.getEvaluators());
        JsonObject states = saved.getAsJsonObject("states");
        for (String name : resumable(trainer).keySet()) {
            if (!states.has(name)) {
                throw new IllegalArgumentException(
                        "The checkpoint has no state of "
                                + name
                                + ", but of "
                                + states.keySet()
                                + ": resume with the listeners and the states of the run before");
            }
        }
    }

    /** Goes on from what a checkpoint has, after {@link #check}. */
    void restore(JsonObject saved, Trainer trainer) {
        position.restore(saved.getAsJsonObject("data"));
        epochs.restore(saved.getAsJsonArray("epochs"));
        metrics = saved.getAsJsonObject("metrics");
        epochs.replay(trainer, metrics == null ? 0 : position.batches());
        if (saved.has(EARLY_STOPPING)) { // the epochs that are over have ended in time
            EarlyStoppingTime.restore(saved.getAsJsonArray(EARLY_STOPPING), trainer);
        }
        EvaluatorTotals.restore(saved.getAsJsonArray("evaluators"), trainer.getEvaluators());
        restoreMetrics(trainer);
        JsonObject states = saved.getAsJsonObject("states");
        resumable(trainer).forEach((name, each) -> each.restoreState(states.get(name)));
    }

    /** Returns the state of an evaluator, a listener or anything else of the user's. */
    static JsonElement stateOf(String name, Resumable resumable) {
        try {
            return resumable.saveState();
        } catch (RuntimeException e) {
            throw new IllegalStateException("saveState() of " + name + " has thrown " + e, e);
        }
    }

    /** Restores the metrics as soon as the trainer has some. */
    void restoreMetrics(Trainer trainer) {
        Metrics present = trainer.getMetrics();
        if (metrics != null && present != null) {
            SavedMetrics.restore(metrics, present);
            metrics = null;
        }
    }

    private Map<String, Resumable> resumable(Trainer trainer) {
        Map<String, Resumable> all = new LinkedHashMap<>(own);
        for (TrainingListener listener : EpochRecords.listeners(trainer)) {
            if (listener instanceof Resumable && !all.containsValue(listener)) {
                String name = listener.getClass().getName();
                if (all.put(name, (Resumable) listener) != null) {
                    throw new IllegalArgumentException(
                            "Two listeners of "
                                    + name
                                    + " have a state: name them with optState(name, listener)");
                }
            }
        }
        return all;
    }
}
