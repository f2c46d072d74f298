package io.djltp.llm;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.exchange.NameMapping;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * All that tells models of one {@code model_type} from others: the names of their tensors, the
 * fields of their {@code config.json}, and what these do not say.
 *
 * <p>A field that is absent has the value that Hugging Face's class gives to it. {@code null} says
 * that the class gives none: most of these fields must be there. {@link ConfigFields} throws an
 * exception if a file has a field that its family does not have.
 */
enum ModelFamily {
    LLAMA("llama", "attention_bias: false, mlp_bias: false"),
    MISTRAL("llama", Fields.MISTRAL), // with layer_types, AutoModel takes it for the next
    MINISTRAL("llama", Fields.MISTRAL),
    QWEN2("llama", Fields.QWEN, Trait.INPUT_BIAS),
    QWEN3("llama", Fields.QWEN + ", head_dim: 128, attention_bias: false", Trait.HEAD_NORM),
    SMOLLM3(
            "llama",
            "num_key_value_heads: 4, attention_bias: false, mlp_bias: false, rope_theta: 2e6,"
                    + " tie_word_embeddings: true, no_rope_layers: null, no_rope_layer_interval: 4,"
                    + " use_sliding_window: false, sliding_window: null, layer_types: null"),
    PHI3(
            "phi3",
            "rms_norm_eps: 1e-5, sliding_window: null,"
                    + " original_max_position_embeddings: 4096, partial_rotary_factor: 1",
            Trait.FUSED),
    STARCODER2("starcoder2", Fields.STARCODER2, Trait.CLASSIC),
    GPT2("gpt2", Fields.GPT2, Trait.CLASSIC, Trait.LEARNED, Trait.FUSED, Trait.TRANSPOSED),
    BERT("bert", Fields.BERT, Trait.CLASSIC, Trait.LEARNED, Trait.ENCODER),
    ROBERTA("bert", Fields.ROBERTA, Trait.CLASSIC, Trait.LEARNED, Trait.ENCODER),
    XLM_ROBERTA("bert", Fields.ROBERTA, Trait.CLASSIC, Trait.LEARNED, Trait.ENCODER),
    CAMEMBERT("bert", Fields.ROBERTA, Trait.CLASSIC, Trait.LEARNED, Trait.ENCODER),
    DISTILBERT("distilbert", Fields.DISTILBERT, Trait.CLASSIC, Trait.LEARNED, Trait.ENCODER);

    /** What no field says. */
    enum Trait {
        /** As the first transformers: layer norms, biases, MLPs that are not gated. */
        CLASSIC,
        /** Positions are learned, not rotary. */
        LEARNED,
        /** Queries, keys and values have biases. */
        INPUT_BIAS,
        /** Queries and keys of each head are normalized. */
        HEAD_NORM,
        /** Queries, keys and values are one tensor. */
        FUSED,
        /** Weights of linear layers are stored [in, out]. */
        TRANSPOSED,
        /** Tokens see those after them, and there is no head. */
        ENCODER
    }

    /** Where the head is the embedding, a file has no tensor of it, or an equal one. */
    private static final String HEAD = "lm_head.weight = lm_head.weight\n";

    /** Fields that families share, and long lists. */
    private static final class Fields {

        static final String ALL =
                "model_type: null, vocab_size: null, hidden_size: null, num_hidden_layers: null,"
                        + " num_attention_heads: null, intermediate_size: null,"
                        + " max_position_embeddings: null, hidden_act: silu,"
                        + " tie_word_embeddings: false";
        static final String ROTARY =
                "num_key_value_heads: null, head_dim: null, rms_norm_eps: 1e-6, rope_theta: 10000,"
                        + " rope_scaling: null, rope_parameters: null"; // the last is newer
        static final String MISTRAL =
                "num_key_value_heads: 8, sliding_window: 4096, layer_types: null";
        static final String QWEN =
                "num_key_value_heads: 32, use_sliding_window: false, sliding_window: 4096,"
                        + " max_window_layers: 28, layer_types: null";
        static final String STARCODER2 = // published files also have the fields of others
                "num_key_value_heads: 2, rms_norm_eps: {norm_epsilon: 1e-5}, sliding_window: null,"
                        + " attention_bias: {use_bias: true}, mlp_bias: {use_bias: true},"
                        + " hidden_act: gelu_pytorch_tanh, tie_word_embeddings: true,"
                        + " activation_function: null, layer_norm_epsilon: null";
        static final String GPT2 =
                "hidden_size: {n_embd: null}, num_hidden_layers: {n_layer: null},"
                        + " num_attention_heads: {n_head: null}, intermediate_size: {n_inner: null},"
                        + " max_position_embeddings: {n_positions: null}, tie_word_embeddings: true,"
                        + " hidden_act: {activation_function: gelu_new},"
                        + " rms_norm_eps: {layer_norm_epsilon: 1e-5}";
        static final String BERT =
                "hidden_act: gelu, rms_norm_eps: {layer_norm_eps: 1e-12}, type_vocab_size: 2,"
                        + " tie_word_embeddings: true";
        static final String ROBERTA = BERT + ", pad_token_id: 1"; // before the first position
        static final String DISTILBERT =
                "hidden_size: {dim: null}, num_hidden_layers: {n_layers: null},"
                        + " num_attention_heads: {n_heads: null}, hidden_act: {activation: gelu},"
                        + " intermediate_size: {hidden_dim: null}, tie_word_embeddings: true,"
                        + " rms_norm_eps: {layer_norm_eps: 1e-12}";
    }

    private final String table;
    private final Set<Trait> traits = EnumSet.noneOf(Trait.class);
    private final Map<String, String> names = new HashMap<>(); // where it has one of its own
    private final JsonObject defaults = new JsonObject();

    /**
     * Describes a family.
     *
     * @param table the file with the names of the tensors
     * @param fields the fields that only it has, and those that have other defaults or names than
     *     those of Llama: {@code name: default}, or {@code name: {own name: default}}
     * @param traits what no field says
     */
    ModelFamily(String table, String fields, Trait... traits) {
        this.table = table + ".names";
        this.traits.addAll(List.of(traits));
        Map<String, JsonElement> all = new LinkedHashMap<>();
        for (String each : List.of(Fields.ALL, is(Trait.LEARNED) ? "" : Fields.ROTARY, fields)) {
            all.putAll(new Gson().fromJson("{" + each + "}", JsonObject.class).asMap());
        }
        all.forEach(
                (name, value) -> {
                    String own = name;
                    if (value instanceof JsonObject renamed) {
                        own = renamed.keySet().iterator().next();
                        names.put(name, own);
                    }
                    defaults.add(own, own.equals(name) ? value : value.getAsJsonObject().get(own));
                });
    }

    /** Returns the {@code model_type} of each family. */
    static List<String> types() {
        return Arrays.stream(values()).map(ModelFamily::toString).toList();
    }

    static ModelFamily of(String type) {
        return valueOf(type.toUpperCase(Locale.ROOT).replace('-', '_'));
    }

    boolean is(Trait trait) {
        return traits.contains(trait);
    }

    /** Returns whether a {@code config.json} may have a field. */
    boolean has(String field) {
        return defaults.has(field);
    }

    /** Returns the value of an absent field, or {@code null}. */
    @Nullable JsonElement getDefault(String field) {
        return defaults.get(field);
    }

    /** Returns the name that a field of Llama has in this family. */
    String named(String field) {
        return names.getOrDefault(field, field);
    }

    /** Returns which tensors of a folder, with a head or without, are the network's parameters. */
    NameMapping mapping() {
        NameMapping model = is(Trait.ENCODER) ? EncoderNetwork.mapping(this) : table();
        NameMapping headed = model.withPrefix(prefix());
        return NameMapping.parse(
                is(Trait.ENCODER) ? EncoderNetwork.HEADS + model + headed : HEAD + headed + model);
    }

    /** Returns what stands before the names of tensors where a model has a head. */
    String prefix() {
        return switch (this) {
            case BERT, DISTILBERT -> this + ".";
            case ROBERTA, XLM_ROBERTA, CAMEMBERT -> "roberta.";
            case GPT2 -> "transformer.";
            default -> "model.";
        };
    }

    /** Reads the table of names, without {@link #prefix}. */
    NameMapping table() {
        try (InputStream is = ModelFamily.class.getResourceAsStream(table)) {
            byte[] text = Objects.requireNonNull(is, table).readAllBytes();
            return NameMapping.parse(new String(text, StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Returns the {@code model_type}. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT).replace('_', '-');
    }
}
