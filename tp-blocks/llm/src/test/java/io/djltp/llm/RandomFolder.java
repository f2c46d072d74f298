package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.ParameterStore;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsWriter;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

/** Folders of models with random weights, as Hugging Face lays them out. */
public final class RandomFolder {

    private RandomFolder() {}

    /** Returns a configuration, written with ' for ". */
    public static JsonObject config(String json) {
        return new Gson().fromJson(json.replace('\'', '"'), JsonObject.class);
    }

    /** Writes a small encoder, of 40 tokens, with a tokenizer of bytes. */
    public static void writeEncoder(Path folder) throws IOException {
        String sizes =
                "'vocab_size': 263, 'hidden_size': 20, 'num_hidden_layers': 2,"
                        + " 'num_attention_heads': 5, 'intermediate_size': 31,"
                        + " 'max_position_embeddings': 40";
        write(folder, config("{'model_type': 'bert', " + sizes + "}"), 7);
        ByteTokenizer.write(folder);
    }

    /** Writes a small Llama of two layers, with a tokenizer of bytes. */
    public static void writeDecoder(Path folder, String fields) throws IOException {
        write(folder, config("llama", "'vocab_size': 263, " + fields), 7);
        ByteTokenizer.write(folder);
    }

    /** Makes the second half of a folder's weights NaN. */
    public static void writeNaN(Path folder) throws IOException {
        Path file = folder.resolve("model.safetensors");
        byte[] bytes = Files.readAllBytes(file);
        Arrays.fill(bytes, bytes.length / 2, bytes.length, (byte) 0xFF);
        Files.write(file, bytes);
    }

    /** Returns what a model that was read as a whole computes of ids, [texts, tokens]. */
    public static NDArray outputs(LanguageModel model, NDArray ids) {
        Block network = model.getModel().getBlock();
        ParameterStore store = new ParameterStore(ids.getManager(), false);
        return network.forward(store, new NDList(ids), false).head();
    }

    /** Returns a configuration of two layers, with other fields than those of a table. */
    public static JsonObject config(String modelType, String other) {
        boolean gpt2 = modelType.equals("gpt2");
        String sizes =
                gpt2
                        ? "'vocab_size': 53, 'n_embd': 20, 'n_layer': 2, 'n_head': 5,"
                                + " 'n_positions': 32, 'layer_norm_epsilon': 1e-5"
                        : "'vocab_size': 53, 'hidden_size': 20, 'num_hidden_layers': 2,"
                                + " 'num_attention_heads': 6, 'num_key_value_heads': 3,"
                                + " 'head_dim': 6, 'intermediate_size': 31,"
                                + " 'max_position_embeddings': 32, '"
                                + (modelType.equals("starcoder2") ? "norm_epsilon" : "rms_norm_eps")
                                + "': 1e-5";
        JsonObject config = config("{'model_type': '" + modelType + "', " + sizes + "}");
        for (Map.Entry<String, JsonElement> each : config("{" + other + "}").entrySet()) {
            config.add(each.getKey(), each.getValue());
        }
        return config;
    }

    /** Writes config.json and model.safetensors. */
    public static void write(Path folder, JsonObject config, long seed) throws IOException {
        Files.createDirectories(folder);
        Files.writeString(folder.resolve("config.json"), config.toString());
        write(folder.resolve("model.safetensors"), tensors(config), seed);
    }

    /** Writes the same tensors with the names that AutoModel gives them. */
    static void writeAlone(Path folder, JsonObject config, long seed) throws IOException {
        write(folder, config, seed);
        Map<String, Shape> tensors = new LinkedHashMap<>();
        tensors(config)
                .forEach(
                        (name, shape) ->
                                tensors.put(
                                        name.replaceFirst("^(model|transformer)\\.", ""), shape));
        write(folder.resolve("model.safetensors"), tensors, seed);
    }

    /** Writes tensors of float32. */
    static void write(Path file, Map<String, Shape> tensors, long seed) throws IOException {
        write(file, tensors, Map.of(), seed);
    }

    /** Writes tensors of float32, and some of other data types, which are zeros. */
    static void write(Path file, Map<String, Shape> tensors, Map<String, DataType> types, long seed)
            throws IOException {
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        tensors.forEach(
                (name, shape) ->
                        builder.addTensor(name, types.getOrDefault(name, DataType.FLOAT32), shape));
        builder.optMetadata("format", "pt");
        Random random = new Random(seed);
        try (SafetensorsWriter writer =
                builder.build(
                        FileChannel.open(
                                file,
                                StandardOpenOption.CREATE,
                                StandardOpenOption.TRUNCATE_EXISTING,
                                StandardOpenOption.WRITE))) {
            for (Map.Entry<String, Shape> each : tensors.entrySet()) {
                Shape shape = each.getValue();
                if (types.containsKey(each.getKey())) {
                    int size = types.get(each.getKey()).getNumOfBytes();
                    writer.write(ByteBuffer.allocate((int) shape.size() * size));
                    continue;
                }
                boolean vector = shape.dimension() == 1;
                boolean norm = vector && each.getKey().endsWith("weight");
                double deviation = vector ? 0.2 : 1.5 / Math.sqrt(shape.get(1));
                ByteBuffer bytes =
                        ByteBuffer.allocate((int) shape.size() * 4).order(ByteOrder.LITTLE_ENDIAN);
                for (long i = 0; i < shape.size(); i++) {
                    bytes.putFloat((float) ((norm ? 1 : 0) + deviation * random.nextGaussian()));
                }
                writer.write(bytes.flip());
            }
            writer.finish();
        }
    }

    /** Returns the tensors that a model of a configuration has. */
    static Map<String, Shape> tensors(JsonObject config) {
        return switch (config.get("model_type").getAsString()) {
            case "gpt2" -> gpt2(config);
            case "bert", "roberta", "xlm-roberta", "camembert", "distilbert" -> bert(config);
            default -> llama(config);
        };
    }

    private static Map<String, Shape> llama(JsonObject config) {
        String type = config.get("model_type").getAsString();
        long width = get(config, "hidden_size", 0);
        long heads = get(config, "num_attention_heads", 0);
        long groups = get(config, "num_key_value_heads", heads);
        long dim = get(config, "head_dim", width / heads);
        long hidden = get(config, "intermediate_size", 0);
        boolean starcoder = type.equals("starcoder2");
        boolean bias = is(config, starcoder ? "use_bias" : "attention_bias", starcoder);
        boolean inputBias = bias || type.equals("qwen2");
        boolean mlpBias = starcoder ? bias : is(config, "mlp_bias", false);
        Map<String, Shape> tensors = new LinkedHashMap<>();
        Shape table = new Shape(get(config, "vocab_size", 0), width);
        tensors.put("model.embed_tokens.weight", table);
        for (int i = 0; i < get(config, "num_hidden_layers", 0); i++) {
            String layer = "model.layers." + i + ".";
            tensors.put(layer + "input_layernorm.weight", new Shape(width));
            if (type.equals("phi3")) {
                long rows = (heads + 2 * groups) * dim;
                linear(tensors, layer + "self_attn.qkv_proj", rows, width, false);
            } else {
                linear(tensors, layer + "self_attn.q_proj", heads * dim, width, inputBias);
                linear(tensors, layer + "self_attn.k_proj", groups * dim, width, inputBias);
                linear(tensors, layer + "self_attn.v_proj", groups * dim, width, inputBias);
            }
            linear(tensors, layer + "self_attn.o_proj", width, heads * dim, bias);
            if (type.equals("qwen3")) {
                tensors.put(layer + "self_attn.q_norm.weight", new Shape(dim));
                tensors.put(layer + "self_attn.k_norm.weight", new Shape(dim));
            }
            tensors.put(layer + "post_attention_layernorm.weight", new Shape(width));
            if (type.equals("phi3")) {
                linear(tensors, layer + "mlp.gate_up_proj", 2 * hidden, width, false);
            } else if (starcoder) {
                linear(tensors, layer + "mlp.c_fc", hidden, width, mlpBias);
            } else {
                linear(tensors, layer + "mlp.gate_proj", hidden, width, mlpBias);
                linear(tensors, layer + "mlp.up_proj", hidden, width, mlpBias);
            }
            String down = starcoder ? "mlp.c_proj" : "mlp.down_proj";
            linear(tensors, layer + down, width, hidden, mlpBias);
            if (starcoder) {
                norm(tensors, layer + "input_layernorm", width);
                norm(tensors, layer + "post_attention_layernorm", width);
            }
        }
        tensors.put("model.norm.weight", new Shape(width));
        if (starcoder) {
            norm(tensors, "model.norm", width);
        }
        if (!is(config, "tie_word_embeddings", starcoder || type.equals("smollm3"))) {
            tensors.put("lm_head.weight", table);
        }
        return tensors;
    }

    private static Map<String, Shape> gpt2(JsonObject config) {
        long width = get(config, "n_embd", 0);
        long hidden = get(config, "n_inner", 4 * width);
        Map<String, Shape> tensors = new LinkedHashMap<>();
        Shape table = new Shape(get(config, "vocab_size", 0), width);
        tensors.put("transformer.wte.weight", table);
        tensors.put("transformer.wpe.weight", new Shape(get(config, "n_positions", 0), width));
        for (int i = 0; i < get(config, "n_layer", 0); i++) {
            String layer = "transformer.h." + i + ".";
            norm(tensors, layer + "ln_1", width);
            transposed(tensors, layer + "attn.c_attn", 3 * width, width);
            transposed(tensors, layer + "attn.c_proj", width, width);
            norm(tensors, layer + "ln_2", width);
            transposed(tensors, layer + "mlp.c_fc", hidden, width);
            transposed(tensors, layer + "mlp.c_proj", width, hidden);
        }
        norm(tensors, "transformer.ln_f", width);
        if (!is(config, "tie_word_embeddings", true)) {
            tensors.put("lm_head.weight", table);
        }
        return tensors;
    }

    private static Map<String, Shape> bert(JsonObject config) {
        boolean distilled = config.has("dim");
        long width = get(config, distilled ? "dim" : "hidden_size", 0);
        long hidden = get(config, distilled ? "hidden_dim" : "intermediate_size", 0);
        Map<String, Shape> tensors = new LinkedHashMap<>();
        String first = "embeddings.";
        Shape words = new Shape(get(config, "vocab_size", 0), width);
        tensors.put(first + "word_embeddings.weight", words);
        Shape places = new Shape(get(config, "max_position_embeddings", 0), width);
        tensors.put(first + "position_embeddings.weight", places);
        if (!distilled) {
            Shape kinds = new Shape(get(config, "type_vocab_size", 2), width);
            tensors.put(first + "token_type_embeddings.weight", kinds);
        }
        norm(tensors, first + "LayerNorm", width);
        String[] names = // of the linear layers and the norms, in order
                (distilled
                                ? "attention.q_lin attention.k_lin attention.v_lin attention.out_lin"
                                        + " sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm"
                                : "attention.self.query attention.self.key attention.self.value"
                                        + " attention.output.dense attention.output.LayerNorm"
                                        + " intermediate.dense output.dense output.LayerNorm")
                        .split(" ");
        for (int i = 0; i < get(config, distilled ? "n_layers" : "num_hidden_layers", 0); i++) {
            String layer = (distilled ? "transformer" : "encoder") + ".layer." + i + ".";
            for (String name : Arrays.copyOf(names, 4)) {
                linear(tensors, layer + name, width, width, true);
            }
            norm(tensors, layer + names[4], width);
            linear(tensors, layer + names[5], hidden, width, true);
            linear(tensors, layer + names[6], width, hidden, true);
            norm(tensors, layer + names[7], width);
        }
        return tensors;
    }

    private static void linear(
            Map<String, Shape> tensors, String name, long out, long in, boolean bias) {
        tensors.put(name + ".weight", new Shape(out, in));
        if (bias) {
            tensors.put(name + ".bias", new Shape(out));
        }
    }

    private static void transposed(Map<String, Shape> tensors, String name, long out, long in) {
        tensors.put(name + ".weight", new Shape(in, out));
        tensors.put(name + ".bias", new Shape(out));
    }

    private static void norm(Map<String, Shape> tensors, String name, long width) {
        tensors.put(name + ".weight", new Shape(width));
        tensors.put(name + ".bias", new Shape(width));
    }

    private static long get(JsonObject config, String name, long byDefault) {
        JsonElement value = config.get(name);
        return value == null || value.isJsonNull() ? byDefault : value.getAsLong();
    }

    private static boolean is(JsonObject config, String name, boolean byDefault) {
        return config.has(name) ? config.get(name).getAsBoolean() : byDefault;
    }
}
