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
import ai.djl.training.listener.TrainingListener.BatchData;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * How far a training has come, beside the state of its trainer: the position in the data, the
 * epochs that are over, what evaluators and metrics have, and states of the user's own.
 *
 * <p>What reaches into private fields of DJL is here: the totals of evaluators, after how many
 * batches a listener shows progress, and when early stopping began to count.
 */
final class TrainingProgress {

    /** How many values of a metric are kept: checkpoints are frequent, and a run may be long. */
    private static final int MOST_VALUES = 10_000;

    private static final String PROGRESS = "progressUpdateFrequency";
    private static final String BEGIN = "startTimeMills"; // DJL's spelling
    private static final List<Class<?>> COUNTING =
            List.of(
                    EpochTrainingListener.class,
                    LoggingTrainingListener.class,
                    EarlyStoppingListener.class);

    private final Map<String, Resumable> own;
    private final DataPosition position = new DataPosition();
    private final List<Map<String, Float>> epochs = new ArrayList<>(); // their figures
    private Map<String, Values> metrics; // to be restored when the trainer has some

    /**
     * What a checkpoint has of a training.
     *
     * @param data the position in the data
     * @param epochs the figures of the epochs that are over
     * @param earlyStoppingMillis what listeners have counted, in their order
     * @param evaluators what evaluators have added up in the running epoch, in their order
     * @param metrics the metrics, or {@code null} if there were none
     * @param states states of the user's own, by name
     */
    record Saved(
            DataPosition.Saved data,
            List<Map<String, Float>> epochs,
            @SavedValues.Optional List<Long> earlyStoppingMillis,
            JsonArray evaluators,
            @SavedValues.Optional Map<String, Values> metrics,
            JsonObject states) {}

    /**
     * The newest values of a metric. When they were measured, and other dimensions than the host's,
     * are not kept.
     *
     * @param unit their unit
     * @param values the values, as numbers of 64 bits in base 64
     */
    record Values(Unit unit, String values) {}

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

    /** Notes the end of an epoch, after DJL's listeners. */
    void endEpoch(Trainer trainer) {
        Map<String, Float> figures = new TreeMap<>();
        for (TrainingListener listener : listeners(trainer)) {
            if (listener instanceof EvaluatorTrainingListener evaluating) {
                figures.putAll(evaluating.getLatestEvaluations());
            }
        }
        epochs.add(figures);
        position.endEpoch();
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
                epochs,
                earlyStoppingMillis(trainer),
                totalsOf(trainer.getEvaluators()),
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
        epochs.clear();
        epochs.addAll(saved.epochs());
        metrics = saved.metrics();
        replay(trainer, metrics == null ? 0 : position.batches());
        if (saved.earlyStoppingMillis() != null) {
            restoreEarlyStopping(saved.earlyStoppingMillis(), trainer);
        }
        restoreTotals(saved.evaluators(), trainer.getEvaluators());
        restoreMetrics(trainer);
        resumable(trainer).forEach((name, each) -> each.restoreState(saved.states().get(name)));
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
            ByteBuffer bytes = ByteBuffer.allocate(Double.BYTES * (values.size() - first));
            values.subList(first, values.size()).forEach(each -> bytes.putDouble(each.getValue()));
            String encoded = Base64.getEncoder().encodeToString(bytes.array());
            all.put(name, new Values(values.get(0).getUnit(), encoded));
        }
        return all;
    }

    /** Restores the metrics as soon as the trainer has some. */
    void restoreMetrics(Trainer trainer) {
        Metrics present = trainer.getMetrics();
        if (metrics == null || present == null) {
            return;
        }
        metrics.forEach(
                (name, saved) -> {
                    ByteBuffer values = ByteBuffer.wrap(Base64.getDecoder().decode(saved.values()));
                    while (values.hasRemaining()) {
                        present.addMetric(name, values.getDouble(), saved.unit());
                    }
                });
        metrics = null;
    }

    /**
     * Tells DJL's listeners of the epochs that are over, with the figures that they had, and of the
     * batches of the running one: they keep what they count to themselves.
     *
     * @param trainer the trainer
     * @param batches the number of batches
     * @throws EarlyStoppingListener.EarlyStoppedException if training would have ended there, as it
     *     may under a stricter rule than before
     */
    private void replay(Trainer trainer, long batches) {
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
        int batches = (int) get(field(EvaluatorTrainingListener.class, PROGRESS), listener);
        return Math.max(1, batches); // below 1 it never does
    }

    /** Returns the listeners of a trainer, in their order. */
    static List<TrainingListener> listeners(Trainer trainer) {
        List<TrainingListener> listeners = new ArrayList<>();
        trainer.notifyListeners(listeners::add);
        return listeners;
    }

    /** Returns the milliseconds that listeners have counted of their {@code optMaxDuration}. */
    private static List<Long> earlyStoppingMillis(Trainer trainer) {
        List<Long> all = new ArrayList<>();
        for (TrainingListener listener : listeners(trainer)) {
            if (listener instanceof EarlyStoppingListener) {
                long millis = System.currentTimeMillis() - (long) get(begin(), listener);
                all.add(Math.max(0, millis)); // the clock may have been set back
            }
        }
        return all;
    }

    /** Lets listeners go on counting, as if they had begun earlier; new ones begin with 0. */
    private static void restoreEarlyStopping(List<Long> millis, Trainer trainer) {
        Iterator<Long> left = millis.iterator();
        for (TrainingListener listener : listeners(trainer)) {
            if (listener instanceof EarlyStoppingListener && left.hasNext()) {
                try {
                    begin().setLong(listener, System.currentTimeMillis() - left.next());
                } catch (IllegalAccessException e) {
                    throw new IllegalStateException(e); // it was read, too
                }
            }
        }
    }

    private static Field begin() {
        return field(EarlyStoppingListener.class, BEGIN);
    }

    private static Field field(Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(
                    "DJL's "
                            + type.getSimpleName()
                            + " has no field "
                            + name
                            + ": this library needs the version of DJL that it is built with",
                    e);
        }
    }

    /**
     * Returns what an evaluator has added up, such as the number of right rows and of all.
     *
     * <p>DJL's evaluators return the quotients alone. What they are quotients of is in maps, by the
     * names of the accumulators ({@code train/epoch} ...): those of all fields of an evaluator, and
     * of evaluators in its fields. An evaluator that keeps it otherwise implements {@link
     * Resumable}.
     */
    private static JsonElement totalsOf(Evaluator evaluator) {
        if (evaluator instanceof Resumable) {
            String name = evaluator.getClass().getName();
            return stateOf(name, (Resumable) evaluator);
        }
        JsonObject totals = new JsonObject();
        for (Field field : fields(evaluator)) {
            Object value = get(field, evaluator);
            if (isTotals(value)) {
                JsonObject numbers = new JsonObject();
                ((Map<?, ?>) value)
                        .forEach((name, number) -> numbers.addProperty("" + name, (Number) number));
                totals.add(field.getName(), numbers);
            } else if (!inner(value).isEmpty()) {
                totals.add(field.getName(), totalsOf(inner(value)));
            }
        }
        return totals;
    }

    private static void restoreTotals(JsonElement state, Evaluator evaluator) {
        if (evaluator instanceof Resumable) {
            ((Resumable) evaluator).restoreState(state);
            return;
        }
        JsonObject totals = state.getAsJsonObject();
        for (Field field : fields(evaluator)) {
            Object value = get(field, evaluator);
            JsonElement saved = totals.get(field.getName());
            if (saved == null) {
                continue;
            }
            if (!isTotals(value)) {
                restoreTotals(saved.getAsJsonArray(), inner(value));
                continue;
            }
            @SuppressWarnings("unchecked")
            Map<String, Number> numbers = (Map<String, Number>) value;
            numbers.replaceAll(
                    (name, old) -> {
                        JsonPrimitive number = saved.getAsJsonObject().getAsJsonPrimitive(name);
                        return number == null ? old : like(old, number);
                    });
        }
    }

    /** The exact number of the same type: a sum of floats goes on as one. */
    private static Number like(Number old, JsonPrimitive saved) {
        if (old instanceof Long) {
            return saved.getAsLong();
        } else if (old instanceof Float) {
            return saved.getAsFloat();
        } else if (old instanceof Integer) {
            return saved.getAsInt();
        }
        return saved.getAsDouble();
    }

    private static boolean isTotals(Object value) {
        return value instanceof Map
                && !((Map<?, ?>) value).isEmpty()
                && ((Map<?, ?>) value).keySet().stream().allMatch(String.class::isInstance)
                && ((Map<?, ?>) value).values().stream().allMatch(Number.class::isInstance);
    }

    private static List<Evaluator> inner(Object value) {
        Collection<?> values = value instanceof Collection ? (Collection<?>) value : List.of();
        List<Evaluator> evaluators = new ArrayList<>();
        for (Object each : value instanceof Evaluator ? List.of(value) : values) {
            if (each instanceof Evaluator) {
                evaluators.add((Evaluator) each);
            }
        }
        return evaluators;
    }

    private static List<Field> fields(Evaluator evaluator) {
        List<Field> fields = new ArrayList<>();
        for (Class<?> type = evaluator.getClass();
                type != Object.class;
                type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                boolean object = !field.getType().isPrimitive();
                if (object && !Modifier.isStatic(field.getModifiers())) {
                    fields.add(field);
                }
            }
        }
        return fields;
    }

    private static Object get(Field field, Object of) {
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

    private static JsonArray totalsOf(List<Evaluator> evaluators) {
        JsonArray all = new JsonArray();
        evaluators.forEach(evaluator -> all.add(totalsOf(evaluator)));
        return all;
    }

    private static void restoreTotals(JsonArray all, List<? extends Evaluator> evaluators) {
        for (int i = 0; i < Math.min(all.size(), evaluators.size()); i++) {
            restoreTotals(all.get(i), evaluators.get(i));
        }
    }
}
