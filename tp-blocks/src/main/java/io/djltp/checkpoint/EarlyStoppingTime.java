package io.djltp.checkpoint;

import ai.djl.training.Trainer;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.TrainingListener;

import com.google.gson.JsonArray;

import io.djltp.checkpoint.store.CheckpointException;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;

/**
 * The time that {@link EarlyStoppingListener} has counted of its {@code optMaxDuration}. It notes
 * when the training has begun, in a private field without accessors: a training that goes on is
 * made to have begun that much earlier.
 */
final class EarlyStoppingTime {

    private static final String BEGIN = "startTimeMills"; // DJL's spelling

    private EarlyStoppingTime() {}

    /** Returns the milliseconds that the listeners of a trainer have counted, in their order. */
    static JsonArray of(Trainer trainer) {
        JsonArray all = new JsonArray();
        for (EarlyStoppingListener each : listeners(trainer)) {
            try {
                long millis = System.currentTimeMillis() - begin().getLong(each);
                all.add(Math.max(0, millis)); // the clock may have been set back
            } catch (ReflectiveOperationException e) {
                throw changed(e);
            }
        }
        return all;
    }

    /** Reads what {@link #of} has returned. */
    static List<Long> read(SavedMembers saved) throws CheckpointException {
        List<Long> all = new ArrayList<>();
        for (String listener : saved.names()) {
            all.add(saved.whole(listener, 0, Long.MAX_VALUE));
        }
        return all;
    }

    /** Lets the listeners of a trainer go on counting; those that come new begin with 0. */
    static void restore(List<Long> all, Trainer trainer) {
        List<EarlyStoppingListener> listeners = listeners(trainer);
        for (int i = 0; i < Math.min(all.size(), listeners.size()); i++) {
            long begin = System.currentTimeMillis() - all.get(i);
            try {
                begin().setLong(listeners.get(i), begin);
            } catch (ReflectiveOperationException e) {
                throw changed(e);
            }
        }
    }

    private static List<EarlyStoppingListener> listeners(Trainer trainer) {
        List<EarlyStoppingListener> all = new ArrayList<>();
        for (TrainingListener listener : EpochRecords.listeners(trainer)) {
            if (listener instanceof EarlyStoppingListener) {
                all.add((EarlyStoppingListener) listener);
            }
        }
        return all;
    }

    private static Field begin() throws ReflectiveOperationException {
        Field field = EarlyStoppingListener.class.getDeclaredField(BEGIN);
        field.setAccessible(true);
        return field;
    }

    private static IllegalStateException changed(ReflectiveOperationException cause) {
        return new IllegalStateException(
                "When DJL's EarlyStoppingListener began to count cannot be read or set: this"
                        + " library needs the version of DJL that it is built with",
                cause);
    }
}
