package io.djltp.llm;

import ai.djl.MalformedModelException;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** The ids of a {@code tokenizer.json}. */
final class TokenizerIds {

    private static final Logger logger = LoggerFactory.getLogger(TokenizerIds.class);

    private static final double LEAST_SHARE = 0.75; // the others are padding, or for later
    private static final int BYTES = 256;
    private static final int COMPOSED = 3; // the most bytes that NFC makes one of

    private TokenizerIds() {}

    /**
     * Returns how much text a token stands for, and checks that a model knows all ids.
     *
     * @param file the tokenizer
     * @param vocabulary the number of ids of the model
     * @return the most bytes of a text that a token stands for, or 0 if a text may have any number
     *     of bytes for which there is no token, such as spaces
     * @throws MalformedModelException if the tokenizer has an id above those of the model, or is
     *     none
     */
    static int mostBytes(Path file, int vocabulary) throws IOException, MalformedModelException {
        JsonObject json = ConfigFields.parse(file, JsonObject.class);
        if (!(json.get("model") instanceof JsonObject model)) {
            throw new MalformedModelException(file + " has no object model: it is no tokenizer");
        }
        Map<String, Long> ids = new LinkedHashMap<>();
        if (model.get("vocab") instanceof JsonArray pieces) { // of Unigram: an id is the place
            pieces.forEach(each -> ids.put(each.toString(), (long) ids.size()));
        } else if (model.get("vocab") instanceof JsonObject words) {
            words.entrySet().forEach(each -> ids.put(each.getKey(), each.getValue().getAsLong()));
        }
        List<JsonObject> added = new ArrayList<>();
        if (json.get("added_tokens") instanceof JsonArray tokens) {
            tokens.forEach(each -> added.add(each.getAsJsonObject()));
        }
        added.forEach(each -> ids.put(text(each, "content"), each.get("id").getAsLong()));
        for (Map.Entry<String, Long> each : ids.entrySet()) {
            if (each.getValue() >= vocabulary) {
                throw new MalformedModelException(
                        ("%s has the token %s with id %d, and the model has %d ids (vocab_size of"
                                        + " config.json): the tokenizer is that of another model")
                                .formatted(file, each.getKey(), each.getValue(), vocabulary));
            }
        }
        if (ids.size() < LEAST_SHARE * vocabulary) {
            logger.warn(
                    "{} has {} tokens, and the model {} ids: is the tokenizer that of another"
                            + " model?",
                    file,
                    ids.size(),
                    vocabulary);
        }
        return longest(json, model, added);
    }

    private static int longest(JsonObject json, JsonObject model, List<JsonObject> added) {
        boolean kept = keepsAll(json.get("normalizer")) && keepsAll(json.get("pre_tokenizer"));
        kept &= added.stream().noneMatch(each -> is(each, "lstrip") || is(each, "rstrip"));
        if (!kept || !(model.get("vocab") instanceof JsonObject vocabulary)) {
            return 0;
        }
        Set<String> words = vocabulary.keySet();
        boolean letters = // of bytes, each of one char
                String.valueOf(json.get("pre_tokenizer")).contains("\"ByteLevel\"")
                        && words.stream().filter(word -> word.length() == 1).count() >= BYTES;
        boolean fallback =
                is(model, "byte_fallback")
                        && IntStream.range(0, BYTES)
                                .allMatch(b -> vocabulary.has("<0x%02X>".formatted(b)));
        if (!letters && !fallback) {
            return 0;
        }
        int longest =
                IntStream.concat(
                                words.stream()
                                        .mapToInt(letters ? String::length : TokenizerIds::bytes),
                                added.stream().mapToInt(each -> bytes(text(each, "content"))))
                        .max()
                        .orElse(0);
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
