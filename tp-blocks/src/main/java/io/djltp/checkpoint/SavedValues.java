package io.djltp.checkpoint;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;

import java.lang.reflect.RecordComponent;

/**
 * Reads and writes values of a checkpoint as records. A member that is missing, or of another kind,
 * is an error that names the file and the member: all are read before anything is changed.
 */
final class SavedValues {

    private static final Gson GSON =
            new GsonBuilder().serializeNulls().serializeSpecialFloatingPointValues().create();

    private SavedValues() {}

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
        JsonObject values = checkpoint.getValues();
        try {
            require(checkpoint, name, values.has(name));
            requireMembers(checkpoint, name, values.getAsJsonObject(name), type);
            return GSON.fromJson(values.get(name), type);
        } catch (JsonParseException | IllegalStateException | ClassCastException e) {
            throw wrong(checkpoint, name, "is not what this library writes: " + e.getMessage());
        }
    }

    /** Checks that nothing is missing of a record, and of records in it. */
    private static void requireMembers(
            Checkpoint checkpoint, String path, JsonObject record, Class<?> type)
            throws CheckpointException {
        for (RecordComponent each : type.getRecordComponents()) {
            String member = path + "." + each.getName();
            require(checkpoint, member, record.has(each.getName()));
            JsonElement value = record.get(each.getName());
            if (each.getType().isRecord() && value.isJsonObject()) {
                requireMembers(checkpoint, member, value.getAsJsonObject(), each.getType());
            }
        }
    }

    private static void require(Checkpoint checkpoint, String path, boolean isThere)
            throws CheckpointException {
        if (!isThere) {
            throw wrong(checkpoint, path, "is missing");
        }
    }

    private static CheckpointException wrong(Checkpoint checkpoint, String path, String what) {
        return new CheckpointException(
                String.format(
                        "%s cannot be used: values.%s %s. Use another checkpoint",
                        checkpoint.getPath().resolve(CheckpointIndex.FILE), path, what));
    }
}
