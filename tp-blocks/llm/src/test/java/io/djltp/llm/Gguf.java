package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.torch.BFloat16;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Writes a folder of Hugging Face as a GGUF file, for llama.cpp. */
final class Gguf {

    /** How matrices are stored: the numbers that GGUF has for the tensors, and for the file. */
    enum Type {
        F32(0, 0, 32 * 4),
        F16(1, 1, 32 * 2),
        Q8_0(8, 7, 34),
        BF16(30, 32, 32 * 2);

        final int code;
        final int fileCode;
        final long bytes; // of 32 numbers

        Type(int code, int fileCode, long bytes) {
            this.code = code;
            this.fileCode = fileCode;
            this.bytes = bytes;
        }
    }

    private static final int ALIGNMENT = 32;
    private static final Pattern LAYER =
            Pattern.compile("(?:model\\.layers|h|encoder\\.layer)\\.(\\d+)\\.(.+)");

    /** Names of Hugging Face's tensors, without "weight" and "bias", and those of GGUF. */
    private static final Map<String, String> NAMES =
            Map.ofEntries(
                    Map.entry("model.embed_tokens", "token_embd"),
                    Map.entry("model.norm", "output_norm"),
                    Map.entry("lm_head", "output"),
                    Map.entry("input_layernorm", "attn_norm"),
                    Map.entry("self_attn.q_proj", "attn_q"),
                    Map.entry("self_attn.k_proj", "attn_k"),
                    Map.entry("self_attn.v_proj", "attn_v"),
                    Map.entry("self_attn.o_proj", "attn_output"),
                    Map.entry("post_attention_layernorm", "ffn_norm"),
                    Map.entry("mlp.gate_proj", "ffn_gate"),
                    Map.entry("mlp.up_proj", "ffn_up"),
                    Map.entry("mlp.down_proj", "ffn_down"),
                    Map.entry("wte", "token_embd"),
                    Map.entry("wpe", "position_embd"),
                    Map.entry("ln_f", "output_norm"),
                    Map.entry("ln_1", "attn_norm"),
                    Map.entry("attn.c_attn", "attn_qkv"),
                    Map.entry("attn.c_proj", "attn_output"),
                    Map.entry("ln_2", "ffn_norm"),
                    Map.entry("mlp.c_fc", "ffn_up"),
                    Map.entry("mlp.c_proj", "ffn_down"),
                    Map.entry("embeddings.word_embeddings", "token_embd"),
                    Map.entry("embeddings.position_embeddings", "position_embd"),
                    Map.entry("embeddings.token_type_embeddings", "token_types"),
                    Map.entry("embeddings.LayerNorm", "token_embd_norm"),
                    Map.entry("attention.self.query", "attn_q"),
                    Map.entry("attention.self.key", "attn_k"),
                    Map.entry("attention.self.value", "attn_v"),
                    Map.entry("attention.output.dense", "attn_output"),
                    Map.entry("attention.output.LayerNorm", "attn_output_norm"),
                    Map.entry("intermediate.dense", "ffn_up"),
                    Map.entry("output.dense", "ffn_down"),
                    Map.entry("output.LayerNorm", "layer_output_norm"));

    private final JsonObject config;
    private final ModelConfig sizes;
    private final Path folder;
    private final Type type;
    private final String architecture;
    private final Map<String, byte[]> fields = new LinkedHashMap<>();

    private Gguf(Path folder, Type type) throws Exception {
        this.folder = folder;
        this.type = type;
        config =
                new Gson()
                        .fromJson(
                                Files.readString(folder.resolve("config.json")), JsonObject.class);
        sizes = ModelConfig.read(folder);
        String modelType = sizes.getModelType();
        architecture = modelType.equals("mistral") ? "llama" : modelType;
    }

    /**
     * Writes a file. A sliding window is not in it.
     *
     * @param folder the folder, of llama, mistral, qwen2, gpt2 or bert
     * @param file the file
     * @param type the type of matrices; vectors and learned positions are float32
     */
    static void write(Path folder, Path file, Type type) throws Exception {
        new Gguf(folder, type).write(file);
    }

    private void write(Path file) throws Exception {
        sizes();
        tokenizer();
        try (SafetensorsFolder files = SafetensorsFolder.open(folder);
                NDManager manager = NDManager.newBaseManager();
                FileChannel out =
                        FileChannel.open(
                                file,
                                StandardOpenOption.CREATE,
                                StandardOpenOption.TRUNCATE_EXISTING,
                                StandardOpenOption.WRITE)) {
            List<Tensor> tensors = new ArrayList<>();
            for (String name : files.getNames()) {
                long[] shape = files.get(name).shape().getShape();
                shape = isTransposed(name) ? reversed(shape) : shape;
                tensors.add(new Tensor(name, gguf(name), shape));
                if (architecture.equals("gpt2") && sizes.isTied() && name.contains("wte")) {
                    tensors.add(new Tensor(name, "output.weight", shape));
                }
            }
            float[] divisors = divisors();
            int numbers = fields.values().stream().mapToInt(each -> each.length + 64).sum();
            ByteBuffer head = buffer(64 + numbers + 128 * (1 + tensors.size()));
            head.put("GGUF".getBytes(StandardCharsets.US_ASCII)).putInt(3);
            head.putLong(tensors.size() + (divisors.length > 0 ? 1 : 0)).putLong(fields.size());
            fields.forEach((name, value) -> head.put(text(name)).put(value));
            long at = 0;
            for (Tensor each : tensors) {
                at += describe(head, each.stored, each.shape, typeOf(each), at);
            }
            if (divisors.length > 0) {
                describe(head, "rope_freqs.weight", new long[] {divisors.length}, Type.F32, at);
            }
            write(out, head.flip());
            for (Tensor each : tensors) {
                try (NDManager scope = manager.newSubManager()) {
                    NDArray array = files.fileOf(each.name).read(each.name, scope);
                    array = array.toType(DataType.FLOAT32, false);
                    array = isTransposed(each.name) ? array.transpose() : permuted(each, array);
                    write(out, bytes(array, typeOf(each)));
                }
            }
            ByteBuffer last = buffer(4 * divisors.length);
            for (float each : divisors) {
                last.putFloat(each);
            }
            write(out, last.flip());
        }
    }

    private static void write(FileChannel out, ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            out.write(bytes);
        }
        out.write(ByteBuffer.allocate((int) (-out.position() & ALIGNMENT - 1)));
    }

    /** A tensor of the folder, as the file has it. */
    private record Tensor(String name, String stored, long... shape) {}

    private static long[] reversed(long... shape) {
        return shape.length == 2 ? new long[] {shape[1], shape[0]} : shape;
    }

    /** Returns whether a tensor is one of GPT-2's linear layers, which are [in, out]. */
    private boolean isTransposed(String name) {
        return architecture.equals("gpt2") && name.contains(".c_") && name.endsWith("weight");
    }

    private Type typeOf(Tensor tensor) {
        boolean table = tensor.stored.matches("(position_embd|token_types).*");
        return tensor.shape.length == 1 || table ? Type.F32 : type;
    }

    private String gguf(String name) {
        String own = name.replaceFirst("^(transformer|bert)\\.", "");
        String kind = own.substring(own.lastIndexOf('.'));
        own = own.substring(0, own.length() - kind.length());
        Matcher layer = LAYER.matcher(own);
        String found =
                layer.matches()
                        ? "blk." + layer.group(1) + "." + NAMES.get(layer.group(2))
                        : NAMES.get(own);
        return found + kind;
    }

    /** Llamas of GGUF turn the pairs (2i, 2i + 1), those of Hugging Face (i, i + d/2). */
    private NDArray permuted(Tensor tensor, NDArray array) {
        boolean turned = tensor.name.matches(".*\\.self_attn\\.[qk]_proj\\..*");
        if (!turned || !architecture.equals("llama")) {
            return array;
        }
        long half = sizes.getHeadDim() / 2;
        return array.reshape(-1, 2, half, array.size() / tensor.shape[0])
                .swapAxes(1, 2)
                .reshape(tensor.shape);
    }

    private static long describe(ByteBuffer out, String name, long[] shape, Type type, long at) {
        out.put(text(name)).putInt(shape.length);
        long size = 1;
        for (int i = shape.length - 1; i >= 0; i--) {
            out.putLong(shape[i]);
            size *= shape[i];
        }
        out.putInt(type.code).putLong(at);
        long bytes = size * type.bytes / 32;
        return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    private static ByteBuffer bytes(NDArray array, Type type) {
        return switch (type) {
            case F32 -> array.toByteBuffer().rewind();
            case F16 -> array.toType(DataType.FLOAT16, false).toByteBuffer().rewind();
            case BF16 -> BFloat16.bitsOf(array, array.getManager()).toByteBuffer().rewind();
            case Q8_0 -> eightBits(array);
        };
    }

    /** Blocks of 32: a scale in float16 and a byte each, rounded half away from zero. */
    private static ByteBuffer eightBits(NDArray array) {
        NDArray scales = array.reshape(-1, 32).abs().max(new int[] {1}).div(127f);
        float[] exact = scales.toFloatArray();
        ByteBuffer stored = scales.toType(DataType.FLOAT16, false).toByteBuffer().rewind();
        float[] values = array.toFloatArray();
        ByteBuffer out = buffer(exact.length * 34);
        for (int block = 0; block < exact.length; block++) {
            out.put(stored.get()).put(stored.get());
            float inverse = exact[block] == 0 ? 0 : 1 / exact[block];
            for (int i = 0; i < 32; i++) {
                float value = values[32 * block + i] * inverse;
                out.put((byte) (Math.signum(value) * (int) (Math.abs(value) + 0.5f)));
            }
        }
        return out.flip();
    }

    private void sizes() {
        fields.put("general.architecture", string(architecture));
        fields.put("general.file_type", number(type.fileCode));
        put("block_count", number(sizes.getLayers()));
        put("context_length", number(sizes.getMaxPositions()));
        put("embedding_length", number(sizes.getWidth()));
        put("feed_forward_length", number(sizes.getHiddenFeatures()));
        put("attention.head_count", number(sizes.getHeads()));
        put("attention.head_count_kv", number(sizes.getKeyValueHeads()));
        put("attention.key_length", number(sizes.getHeadDim()));
        put("attention.value_length", number(sizes.getHeadDim()));
        put("vocab_size", number(sizes.getVocabularySize()));
        String rms = sizes.isRmsNorm() ? "_rms" : "";
        put("attention.layer_norm" + rms + "_epsilon", real(sizes.getEpsilon()));
        if (sizes.isEncoder()) {
            put("attention.causal", new byte[] {7, 0, 0, 0, 0});
            put("pooling_type", number(0));
            fields.put("tokenizer.ggml.token_type_count", number(sizes.getTokenTypes()));
        }
        if (sizes.getRotary() == null) {
            return;
        }
        put("rope.dimension_count", number(sizes.getHeadDim()));
        put("rope.freq_base", real(number(config, "rope_theta", 10_000)));
        JsonObject rope = rope();
        String kind = kind(rope);
        if (kind.equals("linear") || kind.equals("yarn")) {
            put("rope.scaling.type", string(kind));
            put("rope.scaling.factor", real(number(rope, "factor", 1)));
            int longest = config.get("max_position_embeddings").getAsInt();
            double original = number(rope, "original_max_position_embeddings", longest);
            put("rope.scaling.original_context_length", number((int) original));
        }
    }

    private void put(String name, byte[] value) {
        fields.put(architecture + "." + name, value);
    }

    private JsonObject rope() {
        JsonElement rope = config.get("rope_scaling");
        return rope instanceof JsonObject found ? found : new JsonObject();
    }

    private static String kind(JsonObject rope) {
        JsonElement kind = rope.has("rope_type") ? rope.get("rope_type") : rope.get("type");
        return kind == null ? "default" : kind.getAsString();
    }

    private static double number(JsonObject from, String name, double byDefault) {
        return from.has(name) ? from.get(name).getAsDouble() : byDefault;
    }

    /** Returns what Llama 3.1 divides the angle of each pair by, of other models nothing. */
    private float[] divisors() {
        JsonObject rope = rope();
        if (!kind(rope).equals("llama3")) {
            return new float[0];
        }
        double factor = number(rope, "factor", 0);
        double low = number(rope, "low_freq_factor", 0);
        double high = number(rope, "high_freq_factor", 0);
        double original = number(rope, "original_max_position_embeddings", 0);
        double base = number(config, "rope_theta", 10_000);
        float[] divisors = new float[sizes.getHeadDim() / 2];
        for (int i = 0; i < divisors.length; i++) {
            double turns = original / (2 * Math.PI * Math.pow(base, i / (double) divisors.length));
            double share = Math.min(1, Math.max(0, (turns - low) / (high - low)));
            divisors[i] = (float) (1 / ((1 - share) / factor + share));
        }
        return divisors;
    }

    /** Writes a byte-level BPE. Without one, llama.cpp takes ids only. */
    private void tokenizer() throws IOException {
        Path file = folder.resolve("tokenizer.json");
        if (!Files.exists(file)) {
            fields.put("tokenizer.ggml.model", string("no_vocab"));
            return;
        }
        JsonObject json = new Gson().fromJson(Files.readString(file), JsonObject.class);
        JsonObject model = json.getAsJsonObject("model");
        String[] tokens = new String[sizes.getVocabularySize()];
        int[] kinds = new int[tokens.length];
        Arrays.setAll(tokens, i -> "[PAD" + i + "]");
        Arrays.fill(kinds, 5); // unused
        for (Map.Entry<String, JsonElement> each : model.getAsJsonObject("vocab").entrySet()) {
            tokens[each.getValue().getAsInt()] = each.getKey();
            kinds[each.getValue().getAsInt()] = 1; // normal
        }
        JsonElement added = json.has("added_tokens") ? json.get("added_tokens") : new JsonArray();
        for (JsonElement each : added.getAsJsonArray()) {
            int id = each.getAsJsonObject().get("id").getAsInt();
            tokens[id] = each.getAsJsonObject().get("content").getAsString();
            kinds[id] = 3; // control
        }
        List<byte[]> merges = new ArrayList<>();
        for (JsonElement each : model.getAsJsonArray("merges")) {
            String merge =
                    each instanceof JsonArray pair
                            ? pair.get(0).getAsString() + " " + pair.get(1).getAsString()
                            : each.getAsString();
            merges.add(text(merge));
        }
        fields.put("tokenizer.ggml.model", string("gpt2"));
        fields.put("tokenizer.ggml.pre", string("gpt-2"));
        fields.put(
                "tokenizer.ggml.tokens", array(8, Arrays.stream(tokens).map(Gguf::text).toList()));
        fields.put(
                "tokenizer.ggml.token_type",
                array(
                        5,
                        Arrays.stream(kinds)
                                .mapToObj(kind -> buffer(4).putInt(kind).array())
                                .toList()));
        fields.put("tokenizer.ggml.merges", array(8, merges));
    }

    private static ByteBuffer buffer(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static byte[] text(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return buffer(8 + bytes.length).putLong(bytes.length).put(bytes).array();
    }

    private static byte[] number(int value) {
        return buffer(8).putInt(4).putInt(value).array();
    }

    private static byte[] real(double value) {
        return buffer(8).putInt(6).putFloat((float) value).array();
    }

    private static byte[] string(String value) {
        byte[] bytes = text(value);
        return buffer(4 + bytes.length).putInt(8).put(bytes).array();
    }

    private static byte[] array(int kind, List<byte[]> items) {
        ByteBuffer out = buffer(16 + items.stream().mapToInt(each -> each.length).sum());
        out.putInt(9).putInt(kind).putLong(items.size());
        items.forEach(out::put);
        return out.array();
    }
}
