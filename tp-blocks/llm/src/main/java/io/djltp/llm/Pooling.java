package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.Errors;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * How one vector is made of the features of a text's tokens, as the files of sentence-transformers
 * say it, or without them the mean, of length 1.
 *
 * @param first whether it is the features of the first token, and not the mean
 * @param normalized whether it is divided by its length
 * @param longest how many tokens of a text count
 */
record Pooling(boolean first, boolean normalized, int longest) {

    private static final String MODE = "pooling_mode_";
    private static final String CLS = MODE + "cls_token";
    private static final String MEAN = MODE + "mean_tokens";

    static Pooling read(Path folder, int maxPositions) throws IOException, MalformedModelException {
        int longest = maxPositions;
        Path limits = folder.resolve("sentence_bert_config.json");
        if (Files.exists(limits)) {
            JsonElement length = ConfigFields.parse(limits, JsonObject.class).get("max_seq_length");
            if (length instanceof JsonPrimitive number && number.isNumber()) {
                longest = Math.min(longest, number.getAsInt());
            }
        }
        Path modules = folder.resolve("modules.json");
        if (!Files.exists(modules)) {
            return new Pooling(false, true, longest);
        }
        boolean first = false;
        boolean normalized = false;
        for (JsonElement each : ConfigFields.parse(modules, JsonArray.class)) {
            String type = each.getAsJsonObject().get("type").getAsString();
            switch (type.substring(type.lastIndexOf('.') + 1)) {
                case "Transformer" -> {}
                case "Normalize" -> normalized = true;
                case "Pooling" -> {
                    String path = each.getAsJsonObject().get("path").getAsString();
                    first = isFirst(folder.resolve(path).resolve("config.json"));
                }
                default ->
                        throw new MalformedModelException(
                                ("%s has a %s; known are Transformer, Pooling and" + " Normalize")
                                        .formatted(modules, type));
            }
        }
        return new Pooling(first, normalized, longest);
    }

    private static boolean isFirst(Path file) throws IOException, MalformedModelException {
        JsonObject config = ConfigFields.parse(file, JsonObject.class);
        List<String> modes = new ArrayList<>();
        for (String name : config.keySet()) {
            if (name.startsWith(MODE)
                    && config.get(name) instanceof JsonPrimitive used
                    && used.getAsBoolean()) {
                modes.add(name);
            }
        }
        if (modes.equals(List.of(CLS)) || modes.equals(List.of(MEAN))) {
            return modes.contains(CLS);
        }
        throw new MalformedModelException(
                file + " has " + modes + "; implemented is one of " + CLS + " and " + MEAN);
    }

    /** Returns the ids of a text; one that is too long keeps its last, which ends it. */
    long[] ids(HuggingFaceTokenizer tokenizer, String text) {
        long[] ids = tokenizer.encode(text, true, false).getIds();
        Errors.check(ids.length > 0, "The tokenizer makes no token of the text '%s'", text);
        if (ids.length <= longest) {
            return ids;
        }
        long[] cut = Arrays.copyOf(ids, longest);
        cut[cut.length - 1] = ids[ids.length - 1];
        return cut;
    }

    /**
     * Returns the vector of a text.
     *
     * @param features the features of its tokens, one token after another
     * @param from where those of the first token are
     * @param tokens the number of tokens
     * @param width the features of a token
     */
    float[] pool(float[] features, int from, int tokens, int width) {
        double[] sum = new double[width];
        int counted = first ? 1 : tokens;
        for (int t = 0; t < counted; t++) {
            for (int i = 0; i < width; i++) {
                sum[i] += features[from + t * width + i];
            }
        }
        double squares = 0;
        for (int i = 0; i < width; i++) {
            sum[i] /= counted;
            squares += sum[i] * sum[i];
        }
        double length = normalized ? Math.max(Math.sqrt(squares), 1e-12) : 1;
        float[] pooled = new float[width];
        for (int i = 0; i < width; i++) {
            pooled[i] = (float) (sum[i] / length);
        }
        return pooled;
    }
}
