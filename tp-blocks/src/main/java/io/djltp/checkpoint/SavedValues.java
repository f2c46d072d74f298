package io.djltp.checkpoint;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.annotations.SerializedName;

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
        return read(checkpoint, name, checkpoint.getValues().get(name), type);
    }

    private static <T extends Record> T read(
            Checkpoint checkpoint, String path, JsonElement json, Class<T> type)
            throws CheckpointException {
        try {
            T read = GSON.fromJson(json, type);
            require(checkpoint, path, read);
            return read;
        } catch (JsonParseException e) {
            throw wrong(checkpoint, path, "is not what this library writes: " + e.getMessage());
        }
    }

    /** Checks that nothing is missing of a record, and of records in it. */
    private static void require(Checkpoint checkpoint, String path, Record values)
            throws CheckpointException {
        if (values == null) {
            throw wrong(checkpoint, path, "is missing");
        }
        for (RecordComponent each : values.getClass().getRecordComponents()) {
            Object value = valueOf(each, values);
            SerializedName other = annotation(values, each, SerializedName.class);
            String member = path + "." + (other == null ? each.getName() : other.value());
            if (value == null && !each.isAnnotationPresent(Optional.class)) {
                throw wrong(checkpoint, member, "is missing");
            } else if (value instanceof Record inner) {
                require(checkpoint, member, inner);
            }
        }
    }

    private static <A extends java.lang.annotation.Annotation> A annotation(
            Record values, RecordComponent component, Class<A> type) {
        try {
            return values.getClass().getDeclaredField(component.getName()).getAnnotation(type);
        } catch (NoSuchFieldException e) {
            throw new IllegalStateException(e); // each component has a field
        }
    }

    private static Object valueOf(RecordComponent component, Record values) {
        try {
            component.getAccessor().setAccessible(true);
            return component.getAccessor().invoke(values);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
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
