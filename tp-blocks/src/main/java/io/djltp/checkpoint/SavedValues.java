package io.djltp.checkpoint;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;

import java.lang.reflect.RecordComponent;

/** Reads and writes values of a checkpoint as records. */
final class SavedValues {

    private static final Gson GSON =
            new GsonBuilder().serializeNulls().serializeSpecialFloatingPointValues().create();

    private SavedValues() {}

    static JsonObject toJson(Record values) {
        return GSON.toJsonTree(values).getAsJsonObject();
    }

    /**
     * Reads a member of the values of a checkpoint, before anything is changed.
     *
     * @param checkpoint the checkpoint
     * @param name the name of the member
     * @param type what it is
     * @throws CheckpointException if it is something else; it names the file and the member
     */
    static <T extends Record> T read(Checkpoint checkpoint, String name, Class<T> type)
            throws CheckpointException {
        try {
            JsonObject json = checkpoint.getValues().getAsJsonObject(name);
            for (RecordComponent each : type.getRecordComponents()) {
                if (!json.has(each.getName())) {
                    throw new JsonParseException(each.getName() + " is missing");
                }
            }
            return GSON.fromJson(json, type);
        } catch (JsonParseException | IllegalStateException | ClassCastException e) {
            throw new CheckpointException(
                    ("%s cannot be used: values.%s is not what this library writes: %s. Use another"
                                    + " checkpoint")
                            .formatted(
                                    checkpoint.getPath().resolve(CheckpointIndex.FILE),
                                    name,
                                    e.getMessage()));
        }
    }
}
