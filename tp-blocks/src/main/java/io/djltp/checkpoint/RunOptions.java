package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The options that make one training another one, such as the seed: a run is resumed with them. */
final class RunOptions {

    static final String NOT_SET = "not set";

    private final Map<String, String> values;

    RunOptions(Map<String, String> values) {
        this.values = values;
    }

    JsonObject save() {
        JsonObject saved = new JsonObject();
        values.forEach(saved::addProperty);
        return saved;
    }

    /**
     * Compares the options with those of a checkpoint.
     *
     * @throws IllegalArgumentException if some differ; it names them with both values
     */
    void check(SavedMembers saved, long step) throws CheckpointException {
        Set<String> names = new LinkedHashSet<>(values.keySet());
        names.addAll(saved.names());
        List<String> differences = new ArrayList<>();
        for (String name : names) {
            String mine = values.getOrDefault(name, NOT_SET);
            String before = saved.has(name) ? saved.text(name) : NOT_SET;
            if (!mine.equals(before)) {
                differences.add(name + " was " + before + " and is " + mine);
            }
        }
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    "The checkpoint of step "
                            + step
                            + " is of another training: "
                            + String.join(", ", differences)
                            + ". Resume with the options of the run before, or begin a new run in"
                            + " another folder");
        }
    }
}
