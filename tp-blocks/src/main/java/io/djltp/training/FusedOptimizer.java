package io.djltp.training;

import ai.djl.training.optimizer.Adam;
import ai.djl.training.optimizer.AdamW;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.bridge.WeightUpdate;

import java.lang.reflect.AccessibleObject;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/**
 * What an optimizer of DJL would do to a weight whose gradient is never there as a whole. DJL has
 * no accessors for what its optimizers were built with: it is read from their private fields.
 */
final class FusedOptimizer {

    private final Optimizer optimizer;

    FusedOptimizer(Optimizer optimizer) {
        this.optimizer = optimizer;
    }

    /** Returns an update with fresh state that does what the optimizer does. */
    WeightUpdate newUpdate() {
        WeightUpdate.Settings settings =
                new WeightUpdate.Settings(
                        number(Optimizer.class, "weightDecays"),
                        number(Optimizer.class, "rescaleGrad"),
                        number(Optimizer.class, "clipGrad"));
        Class<?> type = optimizer.getClass();
        if (type == Sgd.class) {
            return WeightUpdate.sgd(settings, number(type, "momentum"));
        } else if (type == Adam.class || type == AdamW.class) {
            return WeightUpdate.adam(
                    settings,
                    number(type, "beta1"),
                    number(type, "beta2"),
                    number(type, "epsilon"),
                    type == AdamW.class);
        } else if (type == RowwiseAdagrad.class) {
            return WeightUpdate.rowwiseAdagrad(settings, number(type, "epsilon"));
        }
        throw new UnsupportedOperationException(
                "A layer with optFusedLoss(true) is updated by Sgd, Adam, AdamW or RowwiseAdagrad,"
                        + " not by "
                        + type.getName());
    }

    /** Returns whether the optimizer leaves rows alone whose gradient is zero. */
    boolean isRowSparse() {
        Class<?> type = optimizer.getClass();
        boolean still = type == Sgd.class && number(type, "momentum") == 0;
        return (still || type == RowwiseAdagrad.class)
                && number(Optimizer.class, "weightDecays") == 0;
    }

    /**
     * Begins a step.
     *
     * @param update the update
     * @param key the key under which the optimizer counts the updates of the weight
     */
    void begin(WeightUpdate update, String key) {
        try {
            Method updateCount = Optimizer.class.getDeclaredMethod("updateCount", String.class);
            int step = (Integer) accessible(updateCount).invoke(optimizer, key);
            ParameterTracker tracker =
                    (ParameterTracker) value(optimizer.getClass(), "learningRateTracker");
            float rate = tracker.getNewValue(key, step);
            if (!Float.isFinite(rate)) {
                throw new IllegalStateException("The learning rate is " + rate);
            }
            update.begin(rate, step);
        } catch (NoSuchMethodException | IllegalAccessException e) {
            throw new IllegalStateException("Not the optimizer of DJL that is known", e);
        } catch (InvocationTargetException e) {
            throw new IllegalStateException(e.getCause());
        }
    }

    private float number(Class<?> type, String name) {
        return (Float) value(type, name);
    }

    private Object value(Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            return accessible(field).get(optimizer);
        } catch (NoSuchFieldException | IllegalAccessException e) {
            throw new IllegalStateException("Not the optimizer of DJL that is known", e);
        }
    }

    private static <T extends AccessibleObject> T accessible(T member) {
        member.setAccessible(true);
        return member;
    }
}
