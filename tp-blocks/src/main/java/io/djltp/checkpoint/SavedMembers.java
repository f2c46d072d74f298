package io.djltp.checkpoint;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;

/**
 * An object or array among the values of a checkpoint. A member that is missing or of another kind
 * is an error that names the file and the member: each is read before anything is changed.
 */
final class SavedMembers {

    private static final int SHOWN = 40; // characters of a wrong value

    private final String file;
    private final String path;
    private final JsonObject members; // those of an array by their numbers

    SavedMembers(String file, String path, JsonObject members) {
        this.file = file;
        this.path = path;
        this.members = members;
    }

    /** Returns all values of a checkpoint. */
    static SavedMembers of(Checkpoint checkpoint) {
        return new SavedMembers(
                checkpoint.getIndexFile().toString(), "values", checkpoint.getValues());
    }

    /** Returns the names of the members, in their order. */
    Set<String> names() {
        return members.keySet();
    }

    boolean has(String name) {
        return members.has(name);
    }

    /** Returns the error that a member, or what it says, is wrong. */
    CheckpointException wrong(String name, String what) {
        return new CheckpointException(
                file
                        + " cannot be used: "
                        + path
                        + "."
                        + name
                        + " "
                        + what
                        + ". Use another checkpoint");
    }

    private CheckpointException wrongKind(String name, String kind) {
        String shown = members.get(name).toString();
        String end = shown.length() > SHOWN ? "..." : "";
        return wrong(
                name,
                "is "
                        + shown.substring(0, Math.min(SHOWN, shown.length()))
                        + end
                        + ", which is not "
                        + kind);
    }

    /** Returns a member of any kind. */
    JsonElement get(String name) throws CheckpointException {
        if (!members.has(name)) {
            throw wrong(name, "is missing");
        }
        return members.get(name);
    }

    SavedMembers object(String name) throws CheckpointException {
        if (get(name) instanceof JsonObject object) {
            return new SavedMembers(file, path + "." + name, object);
        }
        throw wrongKind(name, "an object");
    }

    /** Returns an array as the members 0, 1 and so on. */
    SavedMembers array(String name) throws CheckpointException {
        if (get(name) instanceof JsonArray array) {
            JsonObject numbered = new JsonObject();
            for (int i = 0; i < array.size(); i++) {
                numbered.add("" + i, array.get(i));
            }
            return new SavedMembers(file, path + "." + name, numbered);
        }
        throw wrongKind(name, "an array");
    }

    String text(String name) throws CheckpointException {
        if (get(name) instanceof JsonPrimitive text && text.isString()) {
            return text.getAsString();
        }
        throw wrongKind(name, "a text");
    }

    List<String> texts(String name) throws CheckpointException {
        SavedMembers array = array(name);
        List<String> texts = new ArrayList<>();
        for (String each : array.names()) {
            texts.add(array.text(each));
        }
        return texts;
    }

    /** Returns the bytes of a text in base 64. */
    byte[] bytes(String name) throws CheckpointException {
        try {
            return Base64.getDecoder().decode(text(name));
        } catch (IllegalArgumentException e) {
            throw wrongKind(name, "in base 64");
        }
    }

    boolean flag(String name) throws CheckpointException {
        if (get(name) instanceof JsonPrimitive flag && flag.isBoolean()) {
            return flag.getAsBoolean();
        }
        throw wrongKind(name, "true or false");
    }

    long whole(String name) throws CheckpointException {
        return whole(name, Long.MIN_VALUE, Long.MAX_VALUE);
    }

    long whole(String name, long least, long most) throws CheckpointException {
        String kind = "a whole number";
        try {
            long number = Long.parseLong(scalar(name, kind));
            if (number < least || number > most) {
                throw wrongKind(name, kind + " from " + least + " to " + most);
            }
            return number;
        } catch (NumberFormatException e) {
            throw wrongKind(name, kind);
        }
    }

    /**
     * Returns a number, which may be NaN or infinite: a text then, for which JSON has no number.
     */
    double number(String name) throws CheckpointException {
        try {
            return Double.parseDouble(scalar(name, "a number"));
        } catch (NumberFormatException e) {
            throw wrongKind(name, "a number");
        }
    }

    /** Returns a number of 32 bits, by its own digits. */
    float single(String name) throws CheckpointException {
        number(name);
        return Float.parseFloat(members.get(name).getAsString());
    }

    private String scalar(String name, String kind) throws CheckpointException {
        JsonElement element = get(name);
        if (element instanceof JsonNull || !element.isJsonPrimitive()) {
            throw wrongKind(name, kind);
        }
        return element.getAsString();
    }
}
