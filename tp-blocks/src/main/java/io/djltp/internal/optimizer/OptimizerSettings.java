package io.djltp.internal.optimizer;

import ai.djl.training.optimizer.Adagrad;
import ai.djl.training.optimizer.Adam;
import ai.djl.training.optimizer.AdamW;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.internal.update.WeightUpdate;
import io.djltp.optimizer.RowwiseAdagrad;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;

/**
 * What an optimizer of DJL was built with, read once: its rule with its numbers, and where its
 * learning rates come from. DJL has no accessors for them: they are read from private fields, here
 * and nowhere else.
 */
public final class OptimizerSettings {

    /** What an optimizer and its trackers have counted since they were built. */
    private static final Set<String> COUNTS = Set.of("numUpdate", "stepIndex");

    private final Supplier<WeightUpdate> rule;
    private final boolean rowSparse;
    private final ParameterTracker learningRates;
    private final int firstUpdate;
    private final String name;
    private final float rescale;

    private OptimizerSettings(Optimizer optimizer) {
        WeightUpdate.Settings settings =
                new WeightUpdate.Settings(
                        number(optimizer, Optimizer.class, "weightDecays"),
                        number(optimizer, Optimizer.class, "rescaleGrad"),
                        number(optimizer, Optimizer.class, "clipGrad"));
        rescale = settings.rescale();
        firstUpdate = 1 + (Integer) value(optimizer, Optimizer.class, "beginNumUpdate");
        Class<?> type = optimizer.getClass();
        name = type.getSimpleName();
        boolean still; // where the gradient is zero, if there is no weight decay
        if (type == Sgd.class) {
            float momentum = number(optimizer, type, "momentum");
            rule = () -> WeightUpdate.sgd(settings, momentum);
            still = momentum == 0;
        } else if (type == Adam.class || type == AdamW.class) {
            float beta1 = number(optimizer, type, "beta1");
            float beta2 = number(optimizer, type, "beta2");
            float epsilon = number(optimizer, type, "epsilon");
            boolean decoupled = type == AdamW.class;
            rule = () -> WeightUpdate.adam(settings, beta1, beta2, epsilon, decoupled);
            still = false;
        } else if (type == Adagrad.class) {
            float epsilon = number(optimizer, type, "epsilon");
            rule = () -> WeightUpdate.adagrad(settings, epsilon);
            still = true;
        } else if (type == RowwiseAdagrad.class) {
            float epsilon = number(optimizer, type, "epsilon");
            rule = () -> WeightUpdate.rowwiseAdagrad(settings, epsilon);
            still = true;
        } else {
            throw new UnsupportedOperationException(
                    "Parameters are updated by Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but"
                            + " the optimizer is a "
                            + type.getName()
                            + "; subclasses are not supported either");
        }
        learningRates = (ParameterTracker) value(optimizer, type, "learningRateTracker");
        rowSparse = still && settings.weightDecay() == 0;
    }

    /**
     * Reads the settings of an optimizer. Its state and its step counts are not used: training
     * begins with none.
     *
     * @param optimizer the optimizer
     * @return its settings
     * @throws UnsupportedOperationException if it is none of {@link Sgd}, {@link Adam}, {@link
     *     AdamW}, {@link Adagrad} and {@link RowwiseAdagrad}
     */
    public static OptimizerSettings of(Optimizer optimizer) {
        return new OptimizerSettings(optimizer);
    }

    /**
     * Describes an optimizer: its class, its numbers, and those of its learning rates.
     *
     * @param optimizer the optimizer
     * @return the values by name, in the same order in every process
     */
    public static Map<String, String> describe(Optimizer optimizer) {
        Map<String, String> facts = new LinkedHashMap<>();
        describe(facts, "the optimizer", optimizer);
        return facts;
    }

    private static void describe(Map<String, String> facts, String name, Object owner) {
        facts.put(name, owner.getClass().getName());
        for (Class<?> type = owner.getClass(); isRead(type); type = type.getSuperclass()) {
            Field[] fields = type.getDeclaredFields();
            Arrays.sort(fields, Comparator.comparing(Field::getName));
            for (Field field : fields) {
                if (Modifier.isStatic(field.getModifiers()) || COUNTS.contains(field.getName())) {
                    continue;
                }
                String place = name + "." + field.getName();
                Object value = value(owner, type, field.getName());
                if (value instanceof Number || value instanceof Boolean || value instanceof Enum) {
                    facts.put(place, "" + value);
                } else if (value instanceof int[]) {
                    facts.put(place, Arrays.toString((int[]) value));
                } else if (value != null && isRead(value.getClass())) {
                    describe(facts, place, value);
                }
            }
        }
    }

    private static boolean isRead(Class<?> type) {
        return type.getName().startsWith("ai.djl.training.")
                || type.getPackage() == RowwiseAdagrad.class.getPackage();
    }

    /**
     * Returns an update of one weight that does what the optimizer does.
     *
     * @return the update, without state
     */
    public WeightUpdate newUpdate() {
        return rule.get();
    }

    /**
     * Returns whether the optimizer leaves rows alone whose gradient is zero.
     *
     * @return whether it does
     */
    public boolean isRowSparse() {
        return rowSparse;
    }

    /**
     * Returns what gradients are multiplied with, {@code setRescaleGrad}: one divided by what a
     * scaled loss was multiplied with.
     *
     * @return the factor, 1 if nothing was said
     */
    public float getRescale() {
        return rescale;
    }

    /**
     * Returns which optimizer it is.
     *
     * @return the name of its class, such as {@code Adam}
     */
    public String getName() {
        return name;
    }

    /** Returns where the learning rates come from. */
    ParameterTracker getLearningRates() {
        return learningRates;
    }

    /** Returns the number of the first update. */
    int getFirstUpdate() {
        return firstUpdate;
    }

    private static float number(Optimizer optimizer, Class<?> type, String name) {
        return (Float) value(optimizer, type, name);
    }

    private static Object value(Object optimizer, Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(optimizer);
        } catch (NoSuchFieldException | IllegalAccessException e) {
            throw new IllegalStateException(
                    "The %s of this version of DJL has another field than %s"
                            .formatted(type.getName(), name),
                    e);
        }
    }
}
