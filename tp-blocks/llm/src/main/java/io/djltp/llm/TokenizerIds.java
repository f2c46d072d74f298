package io.djltp.llm;

import ai.djl.MalformedModelException;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** The ids of a {@code tokenizer.json}. */
final class TokenizerIds {

    private static final int BYTES = 256;
    private static final int COMPOSED = 3; // the most bytes that NFC makes one of

    private TokenizerIds() {}

    /**
     * Checks that a model knows the ids of a tokenizer.
     *
     * @param file the tokenizer
     * @param vocabulary the number of ids of the model
     * @return the most bytes of a text that a token stands for, or 0 if a text may have any number
     *     of bytes for which there is no token, such as spaces
     * @throws MalformedModelException if the tokenizer has an id above those of the model, or is
     *     none
     */
    static int check(Path file, int vocabulary) throws IOException, MalformedModelException {
        JsonObject json = ConfigFields.parse(file, JsonObject.class);
        if (!(json.get("model") instanceof JsonObject model)) {
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
        return longest(json, model);
    }

    private static int longest(JsonObject json, JsonObject model) {
        boolean kept = keepsAll(json.get("normalizer")) && keepsAll(json.get("pre_tokenizer"));
        if (!kept || !(model.get("vocab") instanceof JsonObject vocabulary)) {
            return 0;
        }
        boolean letters = // of bytes, each of one char
                String.valueOf(json.get("pre_tokenizer")).contains("\"ByteLevel\"")
                        && vocabulary.keySet().stream().filter(t -> t.length() == 1).count()
                                >= BYTES;
        boolean fallback =
                is(model, "byte_fallback")
                        && IntStream.range(0, BYTES)
                                .allMatch(b -> vocabulary.has("<0x%02X>".formatted(b)));
        if (!letters && !fallback) {
            return 0;
        }
        int longest = 0;
        for (String token : vocabulary.keySet()) {
            longest = Math.max(longest, letters ? token.length() : bytes(token));
        }
        if (json.get("added_tokens") instanceof JsonArray added) {
            for (JsonElement each : added) {
                JsonObject token = each.getAsJsonObject();
                if (is(token, "lstrip") || is(token, "rstrip")) { // takes any number of spaces
                    return 0;
                }
                longest = Math.max(longest, bytes(token.get("content").getAsString()));
            }
        }
        boolean composes = String.valueOf(json.get("normalizer")).contains("\"NFC\"");
        return composes ? COMPOSED * longest : longest;
    }

    /** Returns whether a normalizer or pre-tokenizer leaves as many bytes, or a third by NFC. */
    private static boolean keepsAll(@Nullable JsonElement part) {
        if (!(part instanceof JsonObject step)) {
            return part == null || part.isJsonNull();
        }
        return switch (text(step, "type")) {
            case "ByteLevel", "Metaspace", "Digits", "Prepend", "NFC" -> true;
            case "Split" -> !text(step, "behavior").equals("Removed");
            case "Replace" ->
                    step.get("pattern") instanceof JsonObject pattern
                            && pattern.has("String")
                            && bytes(text(step, "content")) >= bytes(text(pattern, "String"));
            case "Sequence" ->
                    Stream.of("normalizers", "pretokenizers")
                            .filter(step::has)
                            .flatMap(name -> step.getAsJsonArray(name).asList().stream())
                            .allMatch(TokenizerIds::keepsAll);
            default -> false;
        };
    }

    private static String text(JsonObject object, String name) {
        return object.has(name) ? object.get(name).getAsString() : "";
    }

    private static boolean is(JsonObject object, String name) {
        return object.has(name) && object.get(name).getAsBoolean();
    }

    private static int bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8).length;
    }
}
