package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.types.DataType;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonPrimitive;

import io.djltp.nn.LoraConfig;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.attention.RotaryScaling;

import org.jspecify.annotations.Nullable;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** The fields of a {@code config.json}, of which each is asked for by its name. */
final class ConfigFields {

    private static final String ROPE_THETA = "rope_theta";
    private static final String ORIGINAL = "original_max_position_embeddings";
    private static final String PARTIAL = "partial_rotary_factor";

    /** Fields that say nothing about what the model computes, or only about its training. */
    private static final Pattern IGNORED =
            Pattern.compile(
                    "_.*|tie_weights_|unsloth_.*|sinusoidal_pos_embds|dropout|directionality"
                            + "|pooler_.*|output_past|.*_token_id|.*_pdrop|.*_dropout|.*_dropout_prob|torch_dtype|dtype"
                            + "|transformers_version|transformers\\.js_config|architectures"
                            + "|use_cache|initializer_range|pretraining_tp|auto_map|id2label"
                            + "|label2id|name_or_path|task_specific_params|n_ctx|summary_.*|problem_type"
                            + "|finetuning_task|gradient_checkpointing|max_window_layers"
                            + "|output_attentions|output_hidden_states|return_dict|license"
                            + "|is_llama_config|.*softmax_in_fp32|tokenizer_class|torchscript"
                            + "|num_labels");

    /** Fields of other models, or of other files, which change what the model computes. */
    private static final Set<String> NOT_IMPLEMENTED =
            Set.of(
                    ("quantization_config attn_logit_softcapping final_logit_softcapping"
                                    + " query_pre_attn_scalar logit_scale logits_scaling residual_multiplier"
                                    + " embedding_multiplier attention_multiplier num_local_experts"
                                    + " num_experts rotary_pct alibi")
                            .split(" "));

    /** Fields that have one value here, and what it is. */
    private static final JsonObject FIXED =
            new Gson()
                    .fromJson(
                            "{is_encoder_decoder: false, is_decoder: false, attention_bias: false,"
                                    + " mlp_bias: false, lm_head_bias: false, full_attn_mod: 1,"
                                    + " interpolate_factor: 1,"
                                    + " add_cross_attention: false, scale_attn_weights: true,"
                                    + " scale_attn_by_inverse_layer_idx: false,"
                                    + " reorder_and_upcast_attn: false, partial_rotary_factor: 1,"
                                    + " use_mrope: false, rope_interleaved: false,"
                                    + " chunk_size_feed_forward: 0, pruned_heads: {},"
                                    + " position_embedding_type: absolute,"
                                    + " mlp_type: default, norm_type: layer_norm}",
                            JsonObject.class);

    /** Ways to generate that are not implemented, and the values without them. */
    private static final JsonObject NOT_GENERATED =
            new Gson()
                    .fromJson(
                            "{num_beams: 1, num_beam_groups: 1, penalty_alpha: 0, typical_p: 1,"
                                    + " epsilon_cutoff: 0, eta_cutoff: 0, diversity_penalty: 0,"
                                    + " encoder_repetition_penalty: 1, no_repeat_ngram_size: 0,"
                                    + " bad_words_ids: [], forced_bos_token_id: [],"
                                    + " forced_eos_token_id: [], suppress_tokens: [],"
                                    + " begin_suppress_tokens: [], sequence_bias: {},"
                                    + " renormalize_logits: false, guidance_scale: 1, min_length: 0,"
                                    + " min_new_tokens: 0, top_h: 1, token_healing: false,"
                                    + " watermarking_config: {}, dola_layers: [], constraints: [],"
                                    + " force_words_ids: [], exponential_decay_length_penalty: []}",
                            JsonObject.class);

    /** Fields of adapters that say nothing about what they compute. */
    private static final Set<String> IGNORED_OF_ADAPTERS =
            Set.of(
                    ("base_model_name_or_path revision task_type inference_mode auto_mapping"
                                    + " peft_version megatron_core layers_pattern qalora_group_size")
                            .split(" "));

    /** Values of a field that is not used. */
    private static final JsonArray NOTHING =
            new Gson().fromJson("[null, false, {}, [], \"\"]", JsonArray.class);

    /** Ways to begin that leave the weights of the model as they are. */
    private static final JsonArray PLAIN_START =
            new Gson().fromJson("[true, false, \"gaussian\", \"orthogonal\"]", JsonArray.class);

    private final Path file;
    private final JsonObject fields;
    private final Set<String> asked = new LinkedHashSet<>();
    private @Nullable ModelFamily family; // once it is asked for, only its fields are known

    private ConfigFields(Path file, JsonObject fields) {
        this.file = file;
        this.fields = fields;
    }

    static ConfigFields read(Path folder) throws IOException, MalformedModelException {
        boolean isFolder = Files.isDirectory(folder);
        if (!isFolder && !folder.toString().endsWith(".json")) {
            throw new FileNotFoundException(
                    "There is no folder %s: name one with config.json and model.safetensors"
                            .formatted(folder));
        }
        Path file = isFolder ? folder.resolve("config.json") : folder;
        if (!Files.exists(file)) {
            boolean adapter = file.endsWith("adapter_config.json");
            throw new FileNotFoundException(
                    "There is no %s: %s writes it beside %smodel.safetensors"
                            .formatted(
                                    file.toAbsolutePath(),
                                    adapter ? "PEFT" : "Hugging Face",
                                    adapter ? "adapter_" : ""));
        }
        return new ConfigFields(file, parse(file, JsonObject.class));
    }

    /** Reads a file, which must be an object or a list. */
    static <T extends JsonElement> T parse(Path file, Class<T> type)
            throws IOException, MalformedModelException {
        if (!Files.exists(file)) {
            throw new FileNotFoundException(
                    "There is no %s, which the folder of the model needs: download all of its files"
                            .formatted(file.toAbsolutePath()));
        }
        try (Reader reader = Files.newBufferedReader(file)) {
            T json = new Gson().fromJson(reader, type);
            if (json != null) {
                return json;
            }
        } catch (JsonParseException e) {
            String kind = type == JsonArray.class ? "a list" : "an object";
            throw new MalformedModelException(file + " is not " + kind + " of JSON", e);
        }
        throw new MalformedModelException(file + " is empty");
    }

    /** Says in a {@code config.json} which data type the weights have. */
    static void setDataType(Path file, DataType type) throws IOException {
        Gson gson = // null is not what others take where a field is missing
                new GsonBuilder()
                        .setPrettyPrinting()
                        .disableHtmlEscaping()
                        .serializeNulls()
                        .create();
        JsonObject fields = gson.fromJson(Files.readString(file), JsonObject.class);
        String name = fields.has("dtype") ? "dtype" : "torch_dtype";
        fields.addProperty(name, type.name().toLowerCase(Locale.ROOT));
        Files.writeString(file, gson.toJson(fields) + "\n");
    }

    /** Returns the fields of a text. */
    static ConfigFields parse(String json) {
        JsonObject fields = new Gson().fromJson(json, JsonObject.class);
        if (fields == null) {
            throw new JsonParseException("There is no JSON");
        }
        return new ConfigFields(Path.of("config.json"), fields);
    }

    MalformedModelException malformed(String message, @Nullable Object... values) {
        return new MalformedModelException(
                file + ": " + String.format(Locale.ROOT, message, values));
    }

    /** Returns the family of the model, whose fields and defaults count from now on. */
    ModelFamily family() throws MalformedModelException {
        ModelFamily own = ModelFamily.of(choose("model_type", ModelFamily.types(), null));
        family = own;
        return own;
    }

    private @Nullable JsonElement get(String name) {
        JsonElement value = fields.get(name);
        if (family != null && (value == null || !family.has(name))) {
            value = family.getDefault(name);
        }
        asked.add(name);
        return value == null || value.isJsonNull() ? null : value;
    }

    boolean has(String name) {
        return get(name) != null;
    }

    /** Returns a whole number above 0; the default 0 for a field that must be there. */
    int count(String name, int byDefault) throws MalformedModelException {
        double value = number(name, byDefault);
        if (value == 0 && !has(name)) {
            throw malformed("%s is missing", name);
        }
        if (value < 1 || value != (int) value) {
            throw malformed("%s is %s, and must be a whole number above 0", name, get(name));
        }
        return (int) value;
    }

    /** Returns a number above 0. */
    double positive(String name, double byDefault) throws MalformedModelException {
        JsonElement value = get(name);
        return positive(name, value == null ? new JsonPrimitive(byDefault) : value);
    }

    private double positive(String name, JsonElement element) throws MalformedModelException {
        boolean number = element instanceof JsonPrimitive primitive && primitive.isNumber();
        double value = number ? element.getAsDouble() : 0;
        if (!(value > 0) || Double.isInfinite(value)) {
            throw malformed("%s is %s, and must be a number above 0", name, element);
        }
        return value;
    }

    /** Returns an id or several, or none. */
    List<Integer> ids(String name, int vocabulary) throws MalformedModelException {
        List<Integer> ids = new ArrayList<>();
        for (JsonElement each : all(name)) {
            boolean number = each instanceof JsonPrimitive primitive && primitive.isNumber();
            double id = number ? each.getAsDouble() : -1;
            if (number && id == -1) {
                continue; // as some write that there is none
            }
            if (id < 0 || id >= vocabulary || id != (int) id) {
                throw malformed(
                        "%s is %s, and the ids of the model are 0 to %d",
                        name, get(name), vocabulary - 1);
            }
            ids.add((int) id);
        }
        return List.copyOf(ids);
    }

    /** Returns a string or several, or none. */
    List<String> strings(String name) throws MalformedModelException {
        List<String> strings = new ArrayList<>();
        for (JsonElement each : all(name)) {
            if (!(each instanceof JsonPrimitive string && string.isString())) {
                throw malformed("%s is %s, and must be strings", name, get(name));
            }
            strings.add(each.getAsString());
        }
        return strings;
    }

    private List<JsonElement> all(String name) {
        JsonElement value = get(name);
        return value instanceof JsonArray array
                ? array.asList()
                : Stream.ofNullable(value).toList();
    }

    /** Checks that nothing asks for another way to generate. */
    void checkGeneration() throws MalformedModelException {
        for (String name : NOT_GENERATED.keySet()) {
            JsonElement value = get(name);
            if (value != null && !value.equals(NOT_GENERATED.get(name))) {
                throw malformed(
                        "%s is %s, which is not implemented: remove it, or set it to %s",
                        name, value, NOT_GENERATED.get(name));
            }
        }
    }

    double number(String name, double byDefault) throws MalformedModelException {
        JsonElement value = get(name);
        if (value == null) {
            return byDefault;
        }
        if (value instanceof JsonPrimitive primitive && primitive.isNumber()) {
            return primitive.getAsDouble();
        }
        throw malformed("%s is %s, and must be a number", name, value);
    }

    boolean flag(String name, boolean byDefault) throws MalformedModelException {
        JsonElement value = get(name);
        if (value == null) {
            return byDefault;
        }
        if (value instanceof JsonPrimitive primitive && primitive.isBoolean()) {
            return primitive.getAsBoolean();
        }
        throw malformed("%s is %s, and must be true or false", name, value);
    }

    /** Returns one of some words; without a default it must be there. */
    String choose(String name, Collection<String> known, @Nullable String byDefault)
            throws MalformedModelException {
        JsonElement value = get(name);
        if (value == null && byDefault != null) {
            return byDefault;
        }
        if (value == null) {
            throw malformed("%s is missing: one of %s", name, new TreeSet<>(known));
        }
        if (value instanceof JsonPrimitive word && known.contains(word.getAsString())) {
            return word.getAsString();
        }
        throw malformed("%s is %s; known are %s", name, value, new TreeSet<>(known));
    }

    /** Returns what an {@code adapter_config.json} of PEFT says. */
    LoraConfig lora(boolean transposed) throws MalformedModelException {
        choose("peft_type", List.of("LORA"), null);
        choose("bias", List.of("none"), "none");
        if (flag("fan_in_fan_out", transposed) && !transposed) {
            throw malformed("fan_in_fan_out is true, and the model is no GPT-2");
        }
        JsonElement start = get("init_lora_weights");
        if (start != null && !PLAIN_START.contains(start)) {
            throw malformed(
                    "init_lora_weights is %s, with which the weights of the model are others;"
                            + " implemented are %s",
                    start, PLAIN_START);
        }
        LoraConfig.Builder builder =
                LoraConfig.builder()
                        .optRank(count("r", 8))
                        .optAlpha((float) positive("lora_alpha", 8))
                        .optDropout((float) number("lora_dropout", 0))
                        .optRankStabilized(flag("use_rslora", false));
        JsonElement targets = get("target_modules");
        if (targets instanceof JsonArray names && !names.isEmpty()) {
            builder.optTargets(
                    names.asList().stream().map(JsonElement::getAsString).toArray(String[]::new));
        } else if (targets instanceof JsonPrimitive all
                && all.getAsString().equals(LoraConfig.ALL_LINEAR)) {
            builder.optTargets(LoraConfig.ALL_LINEAR);
        } else if (targets instanceof JsonPrimitive regex && regex.isString()) {
            builder.optTargetPattern(regex.getAsString());
        } else {
            throw malformed(
                    "target_modules is %s, and must be a list of names, or a regular expression",
                    targets);
        }
        for (String name : fields.keySet()) {
            JsonElement value = fields.get(name);
            boolean known = asked.contains(name) || IGNORED_OF_ADAPTERS.contains(name);
            if (!known && !NOTHING.contains(value)) {
                throw malformed("%s is %s, which is not implemented", name, value);
            }
        }
        return builder.build();
    }

    RotaryEmbedding rotary(int headDim, int maxPositions) throws MalformedModelException {
        RotaryEmbedding.Builder builder = RotaryEmbedding.builder();
        double base = positive(ROPE_THETA, 0); // or that of the object
        int original = has(ORIGINAL) ? count(ORIGINAL, 0) : 0;
        JsonElement share = get(PARTIAL);
        boolean read = false;
        for (String name : List.of("rope_scaling", "rope_parameters")) { // the second is newer
            JsonElement value = get(name);
            if (value == null) {
                continue;
            }
            if (read || !(value instanceof JsonObject rope)) {
                throw malformed("%s is %s, and must be one object", name, value);
            }
            read = true;
            if (rope.has(ROPE_THETA)) {
                base = positive(ROPE_THETA, rope.get(ROPE_THETA));
            }
            share = rope.has(PARTIAL) ? rope.get(PARTIAL) : share;
            try {
                builder.optScaling(RotaryScaling.parse(rope.toString(), maxPositions, original));
            } catch (IllegalArgumentException e) {
                throw malformed("%s is %s: %s", name, value, e.getMessage());
            }
        }
        boolean number = share instanceof JsonPrimitive primitive && primitive.isNumber();
        double turned = share == null ? 1 : number ? share.getAsDouble() : 0;
        boolean partial = family != null && family.has(PARTIAL);
        if (!(turned > 0 && turned <= 1) || turned < 1 && !partial) {
            throw malformed("%s is %s; implemented is 1, and less of a phi3", PARTIAL, share);
        }
        try {
            if (turned < 1) {
                builder.optDim((int) (headDim * turned));
            }
            RotaryEmbedding rotary = builder.optBase(base).build();
            rotary.check(headDim);
            return rotary;
        } catch (IllegalArgumentException e) {
            throw malformed("%s", e.getMessage());
        }
    }

    /** Returns which layers have rotary positions: all but some of SmolLM3. */
    List<Boolean> rotaryLayers(int layers) throws MalformedModelException {
        int interval = count("no_rope_layer_interval", layers + 1);
        JsonElement named = get("no_rope_layers"); // 1 of a layer with rotary positions
        JsonArray list = named instanceof JsonArray array ? array : new JsonArray();
        boolean numbers =
                StreamSupport.stream(list.spliterator(), false)
                        .allMatch(it -> it instanceof JsonPrimitive each && each.isNumber());
        if (named != null && (list.size() < layers || !numbers)) {
            throw malformed("no_rope_layers must be a list of %d numbers, one a layer", layers);
        }
        return IntStream.range(0, layers)
                .mapToObj(
                        named == null
                                ? i -> (i + 1) % interval != 0
                                : i -> list.get(i).getAsInt() != 0)
                .toList();
    }

    /**
     * Returns the windows of the layers.
     *
     * @param rotary which layers have rotary positions
     */
    List<Integer> windows(int layers, int maxPositions, List<Boolean> rotary)
            throws MalformedModelException {
        boolean used = flag("use_sliding_window", true) && has("sliding_window");
        int window = used ? count("sliding_window", 0) : 0;
        int whole = (int) number("max_window_layers", 0); // the first layers see all tokens
        boolean mixed = family != null && family.has("no_rope_layers");
        List<Integer> windows = new ArrayList<>();
        JsonElement types = get("layer_types");
        if (types != null && !(types instanceof JsonArray array && array.size() == layers)) {
            throw malformed("layer_types must be a list of %d words, one a layer", layers);
        }
        for (int i = 0; i < layers; i++) {
            boolean slides = mixed ? !rotary.get(i) : i >= whole;
            if (types != null) {
                String type = types.getAsJsonArray().get(i).getAsString();
                slides = type.equals("sliding_attention");
                if (!slides && !type.equals("full_attention")) {
                    throw malformed(
                            "layer_types has %s; known are full_attention, sliding_attention",
                            type);
                }
            }
            windows.add(slides && window < maxPositions ? window : 0);
        }
        return List.copyOf(windows);
    }

    /** Checks the fields that the family does not have. */
    void checkRest(ModelFamily family) throws MalformedModelException {
        for (String name : fields.keySet()) {
            JsonElement value = fields.get(name);
            boolean unknown = !family.has(name) && !IGNORED.matcher(name).matches();
            if (!unknown || value.isJsonNull()) {
                continue;
            }
            if (NOT_IMPLEMENTED.contains(name)) {
                throw malformed(
                        "%s is %s, which is not implemented: take a model without it", name, value);
            }
            JsonElement fixed = FIXED.get(name);
            if (fixed == null) {
                throw malformed(
                        "the field %s = %s of a %s is not known. Remove it if it does not change"
                                + " what the model computes",
                        name, value, family);
            }
            if (!value.equals(fixed)) {
                throw malformed("%s is %s; implemented is %s", name, value, fixed);
            }
        }
    }
}
