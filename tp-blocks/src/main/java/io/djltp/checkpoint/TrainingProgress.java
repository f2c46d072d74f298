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

import io.djltp.internal.parameters.BlockWalk;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.BiConsumer;

/**
 * How far a training has come, beside the state of its trainer: the position in the data, what
 * evaluators and DJL's listeners have counted, metrics, and states of the user's own.
 *
 * <p>DJL's evaluators and listeners count in private fields. An evaluator that keeps anything but
 * maps of numbers implements {@link Resumable}.
 */
final class TrainingProgress {

    static final String NOT_SET = "not set";

    /** The name of these values among those of a checkpoint. */
    static final String NAME = "training";

    /** How many values of a metric are kept: checkpoints are frequent, and a run may be long. */
    private static final int MOST_VALUES = 10_000;

    private static final String BEGIN = "startTimeMills"; // DJL's spelling

    /** The private fields in which DJL's listeners count. */
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
    private final Map<String, String> options; // that make one training another one
    private final DataPosition position = new DataPosition();
    private @Nullable Map<String, Values> metrics; // to be restored when the trainer has some

    /**
     * What a checkpoint has of a training.
     *
     * @param data the position in the data
     * @param counted what DJL's listeners have counted, and evaluators in the running epoch
     * @param metrics the metrics
     * @param states states of the user's own, by name
     * @param options the options that make it what it is
     */
    record Saved(
            DataPosition.Saved data,
            JsonObject counted,
            Map<String, Values> metrics,
            JsonObject states,
            Map<String, String> options) {}

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
    record Noted(JsonObject values, @Nullable RuntimeException failure) {}

    TrainingProgress(Map<String, Resumable> own, Map<String, String> options) {
        this.own = own;
        this.options = options;
    }

    DataPosition position() {
        return position;
    }

    Noted save(Trainer trainer) {
        try {
            JsonObject counted = new JsonObject();
            forCounters(trainer, (name, counter) -> counted.add(name, counter.save()));
            forTotals(trainer, (name, totals) -> counted.add(name, GSON.toJsonTree(totals)));
            JsonObject states = new JsonObject();
            resumable(trainer).forEach((name, each) -> states.add(name, stateOf(name, each)));
            Saved saved = new Saved(position.save(), counted, metricsOf(trainer), states, options);
            return new Noted(CheckpointIndex.toJson(saved), null);
        } catch (RuntimeException e) {
            return new Noted(new JsonObject(), e);
        }
    }

    /**
     * Reads all that a checkpoint has, and checks that states and options are those of this
     * training. Nothing is changed.
     *
     * @throws CheckpointException if something is missing or of another kind
     * @throws IllegalArgumentException if it is of others
     */
    Saved read(Checkpoint checkpoint, Trainer trainer) throws CheckpointException {
        if (!checkpoint.getValues().has(NAME)) {
            throw new IllegalArgumentException(
                    checkpoint.getPath() + " was not written by a CheckpointListener");
        }
        Saved saved = checkpoint.getValues(NAME, Saved.class);
        TreeSet<String> names = new TreeSet<>(options.keySet());
        names.addAll(saved.options().keySet());
        List<String> differences = new ArrayList<>();
        for (String name : names) {
            String mine = options.getOrDefault(name, NOT_SET);
            String before = saved.options().getOrDefault(name, NOT_SET);
            if (!mine.equals(before)) {
                differences.add(name + " was " + before + " and is " + mine);
            }
        }
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    ("The checkpoint of step %d is of another training: %s. Resume with the options"
                                    + " of the run before, or begin a new run in another folder")
                            .formatted(checkpoint.getStep(), String.join(", ", differences)));
        }
        for (String name : resumable(trainer).keySet()) {
            if (!saved.states().has(name)) {
                throw new IllegalArgumentException(
                        ("The checkpoint has no state of %s, but of %s: resume with the "
                                        + "listeners and the states of the run before")
                                .formatted(name, saved.states().keySet()));
            }
        }
        return saved;
    }

    /** Goes on from what was read. */
    void restore(Saved saved, Trainer trainer) {
        position.restore(saved.data());
        metrics = saved.metrics();
        JsonObject counted = saved.counted(); // what it does not have is new, and begins
        forCounters(
                trainer,
                (name, counter) -> {
                    if (counted.has(name)) {
                        counter.restore(counted.get(name));
                    }
                });
        forTotals(trainer, (name, totals) -> restore(totals, counted.getAsJsonObject(name)));
        restoreMetrics(trainer);
        resumable(trainer).forEach((name, each) -> each.restoreState(saved.states().get(name)));
    }

    private static void restore(Map<String, Object> totals, JsonObject saved) {
        if (saved != null) { // a sum of floats goes on as one
            totals.replaceAll(
                    (name, old) ->
                            saved.has(name) ? GSON.fromJson(saved.get(name), old.getClass()) : old);
        }
    }

    private static JsonElement stateOf(String name, Resumable resumable) {
        try {
            return resumable.saveState();
        } catch (RuntimeException e) {
            throw new IllegalStateException(
                    "saveState() of %s has thrown %s".formatted(name, e), e);
        }
    }

    private Map<String, Resumable> resumable(Trainer trainer) {
        Map<String, Resumable> all = new LinkedHashMap<>(own);
        List<Object> others = new ArrayList<>(listeners(trainer));
        others.addAll(trainer.getEvaluators());
        for (Object each : others) {
            if (each instanceof Resumable resumable && !all.containsValue(each)) {
                String name = each.getClass().getName();
                if (all.put(name, resumable) != null) {
                    throw new IllegalArgumentException(
                            "Two listeners of "
                                    + name
                                    + " have a state: name them with optState(name, listener)");
                }
            }
        }
        return all;
    }

    private static Map<String, Values> metricsOf(Trainer trainer) {
        Map<String, Values> all = new LinkedHashMap<>();
        Metrics present = trainer.getMetrics();
        for (String name : present == null ? List.<String>of() : present.getMetricNames()) {
            List<Metric> values = present.getMetric(name);
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

    /** Visits what listeners count, by names such as {@code EpochTrainingListener0.numEpochs}. */
    private static void forCounters(Trainer trainer, BiConsumer<String, Counter> visitor) {
        COUNTERS.forEach(
                (type, fields) -> {
                    int number = 0;
                    for (TrainingListener each : listeners(trainer)) {
                        if (type.isInstance(each)) {
                            String name = type.getSimpleName() + number++ + ".";
                            for (String field : fields) {
                                visitor.accept(name + field, counter(type, field, each));
                            }
                        }
                    }
                });
    }

    /**
     * Visits what evaluators add up, such as the number of right rows and of all: the maps of
     * numbers in their fields, and in those of evaluators in their fields.
     */
    private static void forTotals(
            Trainer trainer, BiConsumer<String, Map<String, Object>> visitor) {
        for (Evaluator evaluator : trainer.getEvaluators()) {
            visitTotals(evaluator.getName(), evaluator, visitor);
        }
    }

    @SuppressWarnings("unchecked")
    private static void visitTotals(
            String name, @Nullable Object value, BiConsumer<String, Map<String, Object>> visitor) {
        if (value instanceof Map<?, ?> map
                && map.keySet().stream().allMatch(String.class::isInstance)
                && map.values().stream().allMatch(Number.class::isInstance)) {
            visitor.accept(name, (Map<String, Object>) map);
        } else if (value instanceof Collection<?> many) {
            int number = 0;
            for (Object each : many) {
                visitTotals(name + number++, each, visitor);
            }
        } else if (value instanceof Evaluator) {
            for (Class<?> type = value.getClass();
                    type != Object.class;
                    type = type.getSuperclass()) {
                for (Field field : type.getDeclaredFields()) {
                    String inner = name + "." + field.getName();
                    visitTotals(inner, BlockWalk.valueOf(value, field), visitor);
                }
            }
        }
    }

    /**
     * A private field in which a listener of DJL counts. Of the time when early stopping began, the
     * milliseconds since are saved.
     */
    private record Counter(Field field, Object of) {

        JsonElement save() {
            Object value = BlockWalk.valueOf(of, field);
            return GSON.toJsonTree(value != null && isTime() ? sinceOrBefore((long) value) : value);
        }

        void restore(JsonElement saved) {
            Object value = GSON.fromJson(saved, field.getGenericType());
            try {
                field.setAccessible(true);
                field.set(of, isTime() ? sinceOrBefore((long) value) : value);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e); // it was made accessible
            }
        }

        private boolean isTime() {
            return field.getName().equals(BEGIN);
        }

        private static long sinceOrBefore(long millis) {
            return Math.max(0, System.currentTimeMillis() - millis); // a clock may be set
        }
    }

    private static Counter counter(Class<?> type, String name, Object of) {
        try {
            return new Counter(type.getDeclaredField(name), of);
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(
                    ("DJL's %s has no field %s: this library needs the version of DJL that it is"
                                    + " built with")
                            .formatted(type.getSimpleName(), name),
                    e);
        }
    }
}
