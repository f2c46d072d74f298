package io.djltp.llm;

import ai.djl.MalformedModelException;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;

import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The ids of a {@code tokenizer.json}. */
final class TokenizerIds {

    private TokenizerIds() {}

    /**
     * Checks that a model knows the ids of a tokenizer.
     *
     * @param file the tokenizer
     * @param vocabulary the number of ids of the model
     * @throws MalformedModelException if the tokenizer has an id above those of the model, or is
     *     none
     */
    static void check(Path file, int vocabulary) throws IOException, MalformedModelException {
        JsonObject json;
        try (Reader reader = Files.newBufferedReader(file)) {
            json = new Gson().fromJson(reader, JsonObject.class);
        } catch (JsonParseException e) {
            throw new MalformedModelException(file + " is not an object of JSON", e);
        }
        if (json == null || !(json.get("model") instanceof JsonObject model)) {
            throw new MalformedModelException(file + " has no object model: it is no tokenizer");
        }
        long largest = -1;
        String token = "";
        JsonElement words = model.get("vocab");
        if (words instanceof JsonArray pieces) { // of Unigram: an id is the place
            largest = pieces.size() - 1;
            token = largest < 0 ? token : pieces.get(pieces.size() - 1).toString();
        } else if (words instanceof JsonObject ids) {
            for (Map.Entry<String, JsonElement> each : ids.entrySet()) {
                if (each.getValue().getAsLong() > largest) {
                    largest = each.getValue().getAsLong();
                    token = each.getKey();
                }
            }
        }
        if (json.get("added_tokens") instanceof JsonArray added) {
            for (JsonElement each : added) {
                long id = each.getAsJsonObject().get("id").getAsLong();
                if (id > largest) {
                    largest = id;
                    token = each.getAsJsonObject().get("content").getAsString();
                }
            }
        }
        if (largest >= vocabulary) {
            throw new MalformedModelException(
                    ("%s has the token %s with id %d, and the model has %d ids (vocab_size of"
                                    + " config.json): the tokenizer is that of another model")
                            .formatted(file, token, largest, vocabulary));
        }
    }
}
