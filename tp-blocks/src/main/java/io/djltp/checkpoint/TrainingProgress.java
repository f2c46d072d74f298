package io.djltp.checkpoint;

import ai.djl.metric.Metric;
import ai.djl.metric.Metrics;
import ai.djl.metric.Unit;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.training.listener.TrainingListener;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * How far a training has come, beside the state of its trainer: the position in the data, what
 * evaluators and DJL's listeners have counted, metrics, and states of the user's own.
 *
 * <p>DJL's evaluators and listeners keep what they count in private fields, which {@link Counter}
 * reads and writes. An evaluator that keeps it otherwise implements {@link Resumable}.
 */
final class TrainingProgress {

    /** How many values of a metric are kept: checkpoints are frequent, and a run may be long. */
    private static final int MOST_VALUES = 10_000;

    private static final String BEGIN = "startTimeMills"; // DJL's spelling

    /** The fields in which DJL's listeners count. */
    private static final Map<Class<?>, List<String>> COUNTERS =
            Map.of(
                    EpochTrainingListener.class, List.of("numEpochs"),
                    LoggingTrainingListener.class, List.of("numEpochs"),
                    EvaluatorTrainingListener.class,
                            List.of("progressCounter", "latestEvaluations"),
                    EarlyStoppingListener.class,
                            List.of(BEGIN, "prevMetricValue", "numberOfEpochsWithoutImprovements"));

    private static final Gson GSON =
            new GsonBuilder().serializeSpecialFloatingPointValues().create();

    private final Map<String, Resumable> own;
    private final DataPosition position = new DataPosition();
    private Map<String, Values> metrics; // to be restored when the trainer has some

    /**
     * What a checkpoint has of a training.
     *
     * @param data the position in the data
     * @param listeners what DJL's listeners have counted
     * @param evaluators what evaluators have added up in the running epoch, in their order
     * @param metrics the metrics, or {@code null} if there were none
     * @param states states of the user's own, by name
     */
    record Saved(
            DataPosition.Saved data,
            JsonObject listeners,
            List<JsonElement> evaluators,
            @SavedValues.Optional Map<String, Values> metrics,
            JsonObject states) {}

    /**
     * The newest values of a metric. When they were measured, and other dimensions than the host's,
     * are not kept.
     *
     * @param unit their unit
     * @param values the values
     */
    record Values(Unit unit, List<Double> values) {}

    /**
     * How far a training has come, for a checkpoint; or why that cannot be said, as where a state
     * of the user's own throws. All processes then take part in the save, which fails as one that
     * cannot be written does.
     *
     * @param values what the checkpoint holds of it
     * @param failure why there is none, or {@code null}
     */
    record Noted(JsonObject values, RuntimeException failure) {}

    TrainingProgress(Map<String, Resumable> own) {
        this.own = own;
    }

    DataPosition position() {
        return position;
    }

    Noted save(Trainer trainer) {
        try {
            return new Noted(SavedValues.toJson(values(trainer)), null);
        } catch (RuntimeException e) {
            return new Noted(new JsonObject(), e);
        }
    }

    private Saved values(Trainer trainer) {
        JsonObject states = new JsonObject();
        resumable(trainer).forEach((name, each) -> states.add(name, stateOf(name, each)));
        Metrics present = trainer.getMetrics();
        return new Saved(
                position.save(),
                Counter.save(Counter.of(listeners(trainer))),
                trainer.getEvaluators().stream().map(TrainingProgress::stateOf).toList(),
                present == null ? null : valuesOf(present),
                states);
    }

    /**
     * Reads all that a checkpoint has, and checks that evaluators and states are those of the
     * trainer. Nothing is changed.
     *
     * @throws CheckpointException if something is missing or of another kind
     * @throws IllegalArgumentException if it is of others
     */
    Saved read(Checkpoint checkpoint, Trainer trainer) throws CheckpointException {
        Saved saved = SavedValues.read(checkpoint, CheckpointRun.VALUES, Saved.class);
        int evaluators = trainer.getEvaluators().size();
        if (saved.evaluators().size() != evaluators) {
            throw new IllegalArgumentException(
                    "The checkpoint has the accuracies and losses of "
                            + saved.evaluators().size()
                            + " evaluators, and the trainer has "
                            + evaluators
                            + ": resume with the evaluators of the run before");
        }
        for (String name : resumable(trainer).keySet()) {
            if (!saved.states().has(name)) {
                throw new IllegalArgumentException(
                        "The checkpoint has no state of "
                                + name
                                + ", but of "
                                + saved.states().keySet()
                                + ": resume with the listeners and the states of the run before");
            }
        }
        return saved;
    }

    /** Goes on from what was read. */
    void restore(Saved saved, Trainer trainer) {
        position.restore(saved.data());
        metrics = saved.metrics();
        Counter.restore(saved.listeners(), Counter.of(listeners(trainer)));
        List<Evaluator> evaluators = trainer.getEvaluators();
        for (int i = 0; i < evaluators.size(); i++) {
            if (evaluators.get(i) instanceof Resumable resumable) {
                resumable.restoreState(saved.evaluators().get(i));
            } else {
                Counter.restore(
                        saved.evaluators().get(i).getAsJsonObject(), Counter.of(evaluators.get(i)));
            }
        }
        restoreMetrics(trainer);
        resumable(trainer).forEach((name, each) -> each.restoreState(saved.states().get(name)));
    }

    private static JsonElement stateOf(Evaluator evaluator) {
        return evaluator instanceof Resumable resumable
                ? stateOf(evaluator.getClass().getName(), resumable)
                : Counter.save(Counter.of(evaluator));
    }

    /** Returns the state of an evaluator, a listener or anything else of the user's. */
    private static JsonElement stateOf(String name, Resumable resumable) {
        try {
            return resumable.saveState();
        } catch (RuntimeException e) {
            throw new IllegalStateException("saveState() of " + name + " has thrown " + e, e);
        }
    }

    private Map<String, Resumable> resumable(Trainer trainer) {
        Map<String, Resumable> all = new LinkedHashMap<>(own);
        for (TrainingListener listener : listeners(trainer)) {
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

    private static Map<String, Values> valuesOf(Metrics metrics) {
        Map<String, Values> all = new LinkedHashMap<>();
        for (String name : metrics.getMetricNames()) {
            List<Metric> values = metrics.getMetric(name);
            int first = Math.max(0, values.size() - MOST_VALUES);
            List<Double> newest =
                    values.subList(first, values.size()).stream().map(Metric::getValue).toList();
            all.put(name, new Values(values.get(0).getUnit(), newest));
        }
        return all;
    }

    /** Restores the metrics as soon as the trainer has some. */
    void restoreMetrics(Trainer trainer) {
        Metrics present = trainer.getMetrics();
        if (metrics != null && present != null) {
            metrics.forEach(
                    (name, saved) ->
                            saved.values()
                                    .forEach(each -> present.addMetric(name, each, saved.unit())));
            metrics = null;
        }
    }

    /** Returns the listeners of a trainer, in their order. */
    static List<TrainingListener> listeners(Trainer trainer) {
        List<TrainingListener> listeners = new ArrayList<>();
        trainer.notifyListeners(listeners::add);
        return listeners;
    }

    /**
     * A private field in which an evaluator or a listener of DJL counts.
     *
     * @param field a field of a number, or of a map of numbers
     * @param of the evaluator or listener
     */
    private record Counter(Field field, Object of) {

        /**
         * Returns what listeners count, by names such as {@code EpochTrainingListener0.numEpochs}.
         */
        static Map<String, Counter> of(List<TrainingListener> listeners) {
            Map<String, Counter> all = new LinkedHashMap<>();
            COUNTERS.forEach(
                    (type, fields) -> {
                        int number = 0;
                        for (TrainingListener each : listeners) {
                            if (type.isInstance(each)) {
                                String name = type.getSimpleName() + number++ + ".";
                                fields.forEach(
                                        field -> all.put(name + field, of(type, field, each)));
                            }
                        }
                    });
            return all;
        }

        private static Counter of(Class<?> type, String field, Object of) {
            try {
                return new Counter(type.getDeclaredField(field), of);
            } catch (NoSuchFieldException e) {
                throw new IllegalStateException(
                        "DJL's "
                                + type.getSimpleName()
                                + " has no field "
                                + field
                                + ": this library needs the version of DJL that it is built with",
                        e);
            }
        }

        /**
         * Returns what an evaluator adds up, such as the number of right rows and of all: the maps
         * in its fields, by the names of DJL's accumulators ({@code train/epoch} ...), and those of
         * evaluators in its fields.
         */
        static Map<String, Counter> of(Evaluator evaluator) {
            Map<String, Counter> all = new LinkedHashMap<>();
            for (Class<?> type = evaluator.getClass();
                    type != Object.class;
                    type = type.getSuperclass()) {
                for (Field field : type.getDeclaredFields()) {
                    if (field.getType().isPrimitive() || Modifier.isStatic(field.getModifiers())) {
                        continue;
                    }
                    Counter counter = new Counter(field, evaluator);
                    Object value = counter.get();
                    Collection<?> inner = value instanceof Collection<?> many ? many : List.of();
                    if (isTotals(value)) {
                        all.put(field.getName(), counter);
                    } else {
                        int number = 0;
                        for (Object each : value instanceof Evaluator ? List.of(value) : inner) {
                            if (each instanceof Evaluator other) {
                                String name = field.getName() + number++ + ".";
                                of(other).forEach((key, part) -> all.put(name + key, part));
                            }
                        }
                    }
                }
            }
            return all;
        }

        private static boolean isTotals(Object value) {
            return value instanceof Map<?, ?> map
                    && !map.isEmpty()
                    && map.keySet().stream().allMatch(String.class::isInstance)
                    && map.values().stream().allMatch(Number.class::isInstance);
        }

        static JsonObject save(Map<String, Counter> counters) {
            JsonObject all = new JsonObject();
            counters.forEach((name, each) -> all.add(name, GSON.toJsonTree(each.value())));
            return all;
        }

        static void restore(JsonObject saved, Map<String, Counter> counters) {
            counters.forEach(
                    (name, each) -> {
                        if (saved.has(name)) { // else it is new, and begins
                            each.set(saved.get(name));
                        }
                    });
        }

        /** Returns the count; of the time when early stopping began, the milliseconds since. */
        private Object value() {
            return field.getName().equals(BEGIN)
                    ? Math.max(0, System.currentTimeMillis() - (long) get()) // a clock may be set
                    : get();
        }

        @SuppressWarnings("unchecked")
        private void set(JsonElement saved) {
            Object read = GSON.fromJson(saved, field.getGenericType());
            if (read instanceof Map<?, ?> numbers) {
                Map<Object, Object> totals = (Map<Object, Object>) get();
                JsonObject json = saved.getAsJsonObject();
                numbers.forEach(
                        (name, number) -> {
                            Object old = totals.get(name); // a sum of floats goes on as one
                            boolean typed = old == null || old.getClass() == number.getClass();
                            totals.put(
                                    name,
                                    typed
                                            ? number
                                            : GSON.fromJson(
                                                    json.get((String) name), old.getClass()));
                        });
                return;
            }
            try {
                field.setAccessible(true);
                field.set(
                        of,
                        field.getName().equals(BEGIN)
                                ? System.currentTimeMillis() - (long) read
                                : read);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e); // it was made accessible
            }
        }

        private Object get() {
            try {
                field.setAccessible(true);
                return field.get(of);
            } catch (ReflectiveOperationException | RuntimeException e) {
                throw new IllegalStateException(
                        "What "
                                + of.getClass().getName()
                                + " has added up cannot be read: let it implement "
                                + Resumable.class.getName(),
                        e);
            }
        }
    }
}
