package io.djltp.checkpoint;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import java.lang.reflect.RecordComponent;

/**
 * Reads and writes values of a checkpoint as records. A member that is missing, or of another kind,
 * is an error that names the file and the member: all are read before anything is changed.
 */
final class SavedValues {

    private static final Gson GSON =
            new GsonBuilder().serializeSpecialFloatingPointValues().create();

    private SavedValues() {}

    /** Marks what older checkpoints, or those of other trainings, do not have. */
    @Retention(RetentionPolicy.RUNTIME)
    @Target(ElementType.RECORD_COMPONENT)
    @interface Optional {}

    /** Returns the members of a record as JSON; those that are {@code null} are left out. */
    static JsonObject toJson(Record values) {
        return GSON.toJsonTree(values).getAsJsonObject();
    }

    /**
     * Reads a member of the values of a checkpoint.
     *
     * @param checkpoint the checkpoint
     * @param name the name of the member
     * @param type what it is
     * @throws CheckpointException if it is something else
     */
    static <T extends Record> T read(Checkpoint checkpoint, String name, Class<T> type)
            throws CheckpointException {
        JsonElement json = checkpoint.getValues().get(name);
        try {
            require(checkpoint, name, json, type);
            return GSON.fromJson(json, type);
        } catch (JsonParseException | IllegalStateException e) {
            throw wrong(checkpoint, name, "is not what this library writes: " + e.getMessage());
        }
    }

    /** Checks that nothing is missing of a value, and of records in it. */
    private static void require(Checkpoint checkpoint, String path, JsonElement json, Class<?> type)
            throws CheckpointException {
        if (json == null || json.isJsonNull()) {
            throw wrong(checkpoint, path, "is missing");
        }
        if (type.isRecord()) {
            JsonObject members = json.getAsJsonObject();
            for (RecordComponent each : type.getRecordComponents()) {
                String name = each.getName();
                if (members.has(name) || !each.isAnnotationPresent(Optional.class)) {
                    require(checkpoint, path + "." + name, members.get(name), each.getType());
                }
            }
        }
    }

    /** Returns the error that a member, or what it says, is wrong. */
    static CheckpointException wrong(Checkpoint checkpoint, String path, String what) {
        return new CheckpointException(
                String.format(
                        "%s cannot be used: values.%s %s. Use another checkpoint",
                        checkpoint.getIndexFile(), path, what));
    }
}
