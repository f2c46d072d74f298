package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import java.util.function.Supplier;

/**
 * How far a training has come, for a checkpoint; or why that cannot be said, as where a state of
 * the user's own throws. All processes then take part in the save, which fails as one that cannot
 * be written does.
 *
 * @param values what the checkpoint holds of it
 * @param failure why there is none, or {@code null}
 */
record SavedProgress(JsonObject values, RuntimeException failure) {

    static SavedProgress of(Supplier<JsonObject> progress) {
        try {
            return new SavedProgress(progress.get(), null);
        } catch (RuntimeException e) {
            return new SavedProgress(new JsonObject(), e);
        }
    }
}
