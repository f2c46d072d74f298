package io.djltp.checkpoint;

import ai.djl.metric.Metrics;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * How far a training has come, beside the state of its trainer: the position in the data, the
 * epochs that are over, what evaluators and metrics have, and states of the user's own.
 */
final class TrainingProgress {

    private static final String DATA = "data";
    private static final String EPOCHS = "epochs";
    private static final String EARLY_STOPPING = "earlyStoppingMillis";
    private static final String EVALUATORS = "evaluators";
    private static final String METRICS = "metrics";
    private static final String STATES = "states";

    private final Map<String, Resumable> own;
    private final DataPosition position = new DataPosition();
    private final EpochRecords epochs = new EpochRecords();
    private Map<String, SavedMetrics.Values> metrics; // to be restored when the trainer has some

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
        saved.add(DATA, position.save());
        saved.add(EPOCHS, epochs.save());
        saved.add(EARLY_STOPPING, EarlyStoppingTime.of(trainer));
        saved.add(EVALUATORS, EvaluatorTotals.of(trainer.getEvaluators()));
        if (trainer.getMetrics() != null) {
            saved.add(METRICS, SavedMetrics.of(trainer.getMetrics()));
        }
        JsonObject states = new JsonObject();
        resumable(trainer).forEach((name, each) -> states.add(name, stateOf(name, each)));
        saved.add(STATES, states);
        return saved;
    }

    /**
     * What a checkpoint has of a training beside the state of its trainer.
     *
     * @param data the position in the data
     * @param epochs the figures of the epochs that are over
     * @param earlyStopping the milliseconds that listeners have counted
     * @param evaluators what evaluators have added up
     * @param metrics the metrics, or {@code null} if there were none
     * @param states states of the user's own, by name
     */
    record Saved(
            DataPosition.Saved data,
            List<Map<String, Float>> epochs,
            List<Long> earlyStopping,
            JsonArray evaluators,
            Map<String, SavedMetrics.Values> metrics,
            Map<String, JsonElement> states) {}

    /**
     * Reads all that a checkpoint has, and checks that evaluators and states are those of the
     * trainer. Nothing is changed.
     *
     * @throws CheckpointException if something is missing or of another kind
     * @throws IllegalArgumentException if it is of others
     */
    Saved read(SavedMembers saved, Trainer trainer) throws CheckpointException {
        DataPosition.Saved data = DataPosition.read(saved.object(DATA));
        List<Map<String, Float>> ended = EpochRecords.read(saved.array(EPOCHS));
        if (ended.size() != data.epoch()) {
            throw saved.wrong(EPOCHS, "has " + ended.size() + " epochs, not " + data.epoch());
        }
        SavedMembers evaluators = saved.array(EVALUATORS);
        JsonArray totals = saved.get(EVALUATORS).getAsJsonArray();
        EvaluatorTotals.check(totals, evaluators, trainer.getEvaluators());
        Map<String, JsonElement> states = new LinkedHashMap<>();
        SavedMembers own = saved.object(STATES);
        for (String name : resumable(trainer).keySet()) {
            if (!own.has(name)) {
                throw new IllegalArgumentException(
                        "The checkpoint has no state of "
                                + name
                                + ", but of "
                                + own.names()
                                + ": resume with the listeners and the states of the run before");
            }
            states.put(name, own.get(name));
        }
        return new Saved(
                data,
                ended,
                saved.has(EARLY_STOPPING) // the epochs that are over have ended in time
                        ? EarlyStoppingTime.read(saved.array(EARLY_STOPPING))
                        : List.of(),
                totals,
                saved.has(METRICS) ? SavedMetrics.read(saved.object(METRICS)) : null,
                states);
    }

    /** Goes on from what was read. */
    void restore(Saved saved, Trainer trainer) {
        position.restore(saved.data());
        epochs.restore(saved.epochs());
        metrics = saved.metrics();
        epochs.replay(trainer, metrics == null ? 0 : position.batches());
        EarlyStoppingTime.restore(saved.earlyStopping(), trainer);
        EvaluatorTotals.restore(saved.evaluators(), trainer.getEvaluators());
        restoreMetrics(trainer);
        resumable(trainer).forEach((name, each) -> each.restoreState(saved.states().get(name)));
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
