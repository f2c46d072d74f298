package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/**
 * How one vector is made of the features of a text's tokens, as the files of sentence-transformers
 * say it, or without them the mean, of length 1.
 *
 * @param modes what is made of the features, one after another in the vector
 * @param dense the folders of the layers behind
 * @param normalized whether the vector is divided by its length at the end
 * @param longest how many tokens of a text count
 * @param prompt what stands before each text
 * @param lower whether texts are in lower case
 */
record Pooling(
        List<Mode> modes,
        List<String> dense,
        boolean normalized,
        int longest,
        String prompt,
        boolean lower) {

    private static final int[] TOKENS = {1}; // the axis
    private static final float HIDDEN = 1e30f;

    /** What is made of the features, by the names of sentence-transformers, and in its order. */
    enum Mode {
        CLS,
        MAX,
        MEAN,
        MEAN_SQRT_LEN_TOKENS,
        WEIGHTEDMEAN,
        LASTTOKEN;

        private String lower() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** Reads the files, of whose prompts one or, for {@code null}, their default is used. */
    static Pooling read(Path folder, int maxPositions, @Nullable String promptName)
            throws IOException, MalformedModelException {
        JsonObject limits = new JsonObject();
        for (String kind : List.of("xlm-roberta", "camembert", "distilbert", "roberta", "bert")) {
            limits = object(folder, "sentence_%s_config.json".formatted(kind), limits);
        }
        JsonElement length = limits.get("max_seq_length");
        if (length == null || length.isJsonNull()) {
            JsonObject words = object(folder, "tokenizer_config.json", new JsonObject());
            length = words.get("model_max_length");
        }
        boolean number = length instanceof JsonPrimitive most && most.isNumber();
        int longest = number ? (int) Math.min(maxPositions, length.getAsDouble()) : maxPositions;
        boolean lower =
                limits.get("do_lower_case") instanceof JsonPrimitive flag && flag.getAsBoolean();
        Path modules = folder.resolve("modules.json");
        boolean plain = !Files.exists(modules); // whose default prompt is none
        String prompt = plain && promptName == null ? "" : prompt(folder, promptName);
        if (plain) {
            return new Pooling(List.of(Mode.MEAN), List.of(), true, longest, prompt, lower);
        }
        List<Mode> modes = List.of();
        List<String> dense = new ArrayList<>();
        boolean normalized = false;
        for (JsonElement each : ConfigFields.parse(modules, JsonArray.class)) {
            JsonObject module = each.getAsJsonObject();
            String type = module.get("type").getAsString();
            String name = type.substring(type.lastIndexOf('.') + 1);
            String path = module.has("path") ? module.get("path").getAsString() : "";
            boolean known =
                    switch (name) {
                        case "Transformer" -> path.isEmpty() && modes.isEmpty();
                        case "Pooling" -> modes.isEmpty();
                        case "Dense" -> !modes.isEmpty() && !normalized;
                        case "Normalize" -> !modes.isEmpty();
                        default -> false;
                    };
            if (!known) {
                throw new MalformedModelException(
                        ("%s has a %s in '%s'; known are a Transformer in '', Pooling, Dense and"
                                        + " Normalize, in this order")
                                .formatted(modules, type, path));
            }
            if (name.equals("Pooling")) {
                modes = modes(folder.resolve(path).resolve("config.json"), prompt);
            } else if (name.equals("Dense")) {
                dense.add(path);
            }
            normalized |= name.equals("Normalize");
        }
        if (modes.isEmpty()) {
            throw new MalformedModelException(modules + " has no Pooling: it makes no vectors");
        }
        return new Pooling(modes, List.copyOf(dense), normalized, longest, prompt, lower);
    }

    private static JsonObject object(Path folder, String name, JsonObject without)
            throws IOException, MalformedModelException {
        Path file = folder.resolve(name);
        return Files.exists(file) ? ConfigFields.parse(file, JsonObject.class) : without;
    }

    /** Returns the prompt of texts that have none. */
    private static String prompt(Path folder, @Nullable String promptName)
            throws IOException, MalformedModelException {
        String file = "config_sentence_transformers.json";
        JsonObject config = object(folder, file, new JsonObject());
        String name = promptName;
        if (name == null && config.get("default_prompt_name") instanceof JsonPrimitive byDefault) {
            name = byDefault.getAsString();
        }
        if (name == null) {
            return "";
        }
        JsonElement prompts = config.has("prompts") ? config.get("prompts") : new JsonObject();
        if (prompts instanceof JsonObject all && all.get(name) instanceof JsonPrimitive prompt) {
            return prompt.getAsString();
        }
        throw new MalformedModelException(
                "%s: %s is none of the prompts %s".formatted(folder.resolve(file), name, prompts));
    }

    private static List<Mode> modes(Path file, String prompt)
            throws IOException, MalformedModelException {
        JsonObject config = ConfigFields.parse(file, JsonObject.class);
        boolean whole =
                !(config.get("include_prompt") instanceof JsonPrimitive flag)
                        || flag.getAsBoolean();
        if (!whole && !prompt.isEmpty()) {
            throw new MalformedModelException(
                    ("%s: include_prompt is false, which is not implemented with the prompt '%s':"
                                    + " remove default_prompt_name")
                            .formatted(file, prompt));
        }
        List<Mode> modes = new ArrayList<>();
        JsonElement chosen = config.get("pooling_mode"); // since version 6
        if (chosen instanceof JsonArray several) {
            for (JsonElement each : several) {
                modes.add(mode(file, each.getAsString()));
            }
        } else if (chosen instanceof JsonPrimitive one) {
            modes.add(mode(file, one.getAsString()));
        } else {
            Stream.of(Mode.values()).filter(mode -> has(config, mode)).forEach(modes::add);
        }
        return modes.isEmpty() ? List.of(Mode.MEAN) : List.copyOf(modes);
    }

    private static Mode mode(Path file, String name) throws MalformedModelException {
        for (Mode mode : Mode.values()) {
            if (mode.lower().equals(name)) {
                return mode;
            }
        }
        throw new MalformedModelException(
                "%s: pooling_mode is %s; known are %s"
                        .formatted(
                                file,
                                name,
                                Arrays.toString(Mode.values()).toLowerCase(Locale.ROOT)));
    }

    /** Returns whether a file of an older version, with a field for each mode, has a mode. */
    private static boolean has(JsonObject config, Mode mode) {
        String names = "pooling_mode_" + mode.lower() + "(_tokens?)?";
        return config.entrySet().stream()
                .filter(field -> field.getKey().matches(names))
                .anyMatch(
                        field ->
                                field.getValue() instanceof JsonPrimitive used
                                        && used.getAsBoolean());
    }

    /** Opens a tokenizer that leaves out what is too long, but for the tokens that it adds. */
    HuggingFaceTokenizer tokenizer(Path file) throws IOException, MalformedModelException {
        return LanguageModel.tokenizer(file, true, longest);
    }

    /** Returns the ids of a text. */
    long[] ids(HuggingFaceTokenizer tokenizer, String text) {
        String whole = prompt + text;
        String read = lower ? whole.toLowerCase(Locale.ROOT) : whole;
        long[] ids = tokenizer.encode(read, true, false).getIds();
        Errors.check(ids.length > 0, "The tokenizer makes no token of the text '%s'", text);
        return ids;
    }

    /**
     * Returns the vectors of texts, before the layers behind.
     *
     * @param features the features of their tokens, [B, T, D]
     * @param isToken 1 for a token, 0 for what fills up, [B, T]
     * @return the vectors, [B, D times the number of modes]
     */
    NDArray pool(NDArray features, NDArray isToken) {
        NDArray counted = isToken.toType(features.getDataType(), false).expandDims(2);
        NDArray count = counted.sum(TOKENS, true);
        NDArray places = counted.cumSum(1).mul(counted); // 1, 2, ... of the tokens
        NDList vectors = new NDList();
        for (Mode mode : modes) {
            NDArray weights =
                    switch (mode) {
                        case CLS -> places.eq(1).toType(features.getDataType(), false);
                        case LASTTOKEN -> places.eq(count).toType(features.getDataType(), false);
                        case MEAN -> counted.div(count);
                        case MEAN_SQRT_LEN_TOKENS -> counted.div(count.sqrt());
                        case WEIGHTEDMEAN -> places.div(places.sum(TOKENS, true));
                        case MAX -> counted.sub(1).mul(HIDDEN);
                    };
            vectors.add(
                    mode == Mode.MAX
                            ? features.add(weights).max(TOKENS)
                            : features.mul(weights).sum(TOKENS));
        }
        return TorchOperations.concat(vectors, 1);
    }
}
