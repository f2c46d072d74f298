package io.djltp.checkpoint;

import ai.djl.training.evaluator.Evaluator;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.checkpoint.store.CheckpointException;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What evaluators have added up in the running epoch, such as the number of right rows and of all.
 *
 * <p>DJL's evaluators return the quotients alone. What they are quotients of is in maps, by the
 * names of the accumulators ({@code train/epoch} ...): those of all fields of an evaluator, and of
 * evaluators in its fields. An evaluator that keeps it otherwise implements {@link Resumable}.
 */
final class EvaluatorTotals {

    /** The totals of DJL that are counts, and never below 0; a loss may be anything. */
    private static final Set<String> COUNTS = Set.of("totalInstances", "correctInstances");

    private EvaluatorTotals() {}

    /** Returns the totals of evaluators, in their order. */
    static JsonArray of(Collection<? extends Evaluator> evaluators) {
        JsonArray all = new JsonArray();
        evaluators.forEach(evaluator -> all.add(of(evaluator)));
        return all;
    }

    /**
     * Checks that totals are those of these evaluators. Nothing is changed.
     *
     * @param all the totals
     * @param saved the same, as a member of the checkpoint
     * @param evaluators the evaluators
     * @throws CheckpointException if one is no number
     * @throws IllegalArgumentException if they are those of others
     */
    static void check(JsonArray all, SavedMembers saved, List<? extends Evaluator> evaluators)
            throws CheckpointException {
        if (all.size() != evaluators.size()) {
            throw others(
                    "the accuracies and losses of "
                            + all.size()
                            + " evaluators, and the trainer has "
                            + evaluators.size());
        }
        for (int i = 0; i < all.size(); i++) {
            if (!(evaluators.get(i) instanceof Resumable)) {
                check(all.get(i), saved, "" + i, evaluators.get(i));
            }
        }
    }

    private static void check(
            JsonElement totals, SavedMembers saved, String number, Evaluator evaluator)
            throws CheckpointException {
        String of = "something else than the totals of " + evaluator.getClass().getName();
        if (!totals.isJsonObject()) {
            throw others(of);
        }
        SavedMembers members = saved.object(number);
        for (Field field : fields(evaluator)) {
            String name = field.getName();
            JsonElement found = totals.getAsJsonObject().get(name);
            Object value = get(field, evaluator);
            if (found == null) {
                continue;
            } else if (isTotals(value) ? !found.isJsonObject() : !found.isJsonArray()) {
                throw others(of + " in its field " + name);
            } else if (isTotals(value)) {
                checkNumbers(members.object(name), (Map<?, ?>) value, COUNTS.contains(name));
            } else {
                check(found.getAsJsonArray(), members.array(name), inner(value));
            }
        }
    }

    private static void checkNumbers(SavedMembers saved, Map<?, ?> totals, boolean counts)
            throws CheckpointException {
        for (Map.Entry<?, ?> total : totals.entrySet()) {
            String name = "" + total.getKey();
            if (saved.has(name) && total.getValue() instanceof Long) {
                saved.whole(name, counts ? 0 : Long.MIN_VALUE, Long.MAX_VALUE);
            } else if (saved.has(name) && total.getValue() instanceof Integer) {
                saved.whole(name, Integer.MIN_VALUE, Integer.MAX_VALUE);
            } else if (saved.has(name)) {
                saved.number(name);
            }
        }
    }

    private static IllegalArgumentException others(String what) {
        return new IllegalArgumentException(
                "The checkpoint has " + what + ": resume with the evaluators of the run before");
    }

    /** Sets the totals, after {@link #check}. */
    static void restore(JsonArray all, List<? extends Evaluator> evaluators) {
        for (int i = 0; i < all.size(); i++) {
            restore(all.get(i), evaluators.get(i));
        }
    }

    private static JsonElement of(Evaluator evaluator) {
        if (evaluator instanceof Resumable) {
            String name = evaluator.getClass().getName();
            return TrainingProgress.stateOf(name, (Resumable) evaluator);
        }
        JsonObject totals = new JsonObject();
        for (Field field : fields(evaluator)) {
            Object value = get(field, evaluator);
            if (isTotals(value)) {
                JsonObject numbers = new JsonObject();
                ((Map<?, ?>) value)
                        .forEach((name, number) -> numbers.add("" + name, exact((Number) number)));
                totals.add(field.getName(), numbers);
            } else if (!inner(value).isEmpty()) {
                totals.add(field.getName(), of(inner(value)));
            }
        }
        return totals;
    }

    private static void restore(JsonElement state, Evaluator evaluator) {
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
                restore(saved.getAsJsonArray(), inner(value));
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

    /** Returns a number of JSON, which has none for a loss that is not finite. */
    static JsonPrimitive exact(Number number) {
        return Double.isFinite(number.doubleValue())
                ? new JsonPrimitive(number)
                : new JsonPrimitive(number.toString());
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

    private static Object get(Field field, Evaluator evaluator) {
        try {
            field.setAccessible(true);
            return field.get(evaluator);
        } catch (ReflectiveOperationException | RuntimeException e) {
            throw new IllegalStateException(
                    "What "
                            + evaluator.getClass().getName()
                            + " has added up cannot be read: let it implement "
                            + Resumable.class.getName(),
                    e);
        }
    }
}
