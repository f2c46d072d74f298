package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.decode.PackedWeight;
import io.djltp.internal.decode.RowBuffer;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.sharding.AxisPart;

import org.jspecify.annotations.Nullable;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * What a rank holds of a model for generation: the packed weights of its heads, its hidden features
 * and its token ids, read by slice. Rows of the embedding are read from the file when a token needs
 * them, so that no rank holds it, and a head that is the embedding is held once.
 */
final class RankWeights implements AutoCloseable {

    /** A layer. A norm without bias has none. */
    record Layer(
            Norm attentionNorm,
            PackedWeight queryKeyValue,
            float @Nullable [] queryNorm,
            float @Nullable [] keyNorm,
            PackedWeight output,
            Norm mlpNorm,
            PackedWeight hidden, // gate and up, or up
            PackedWeight down) {}

    record Norm(float[] weight, float @Nullable [] bias) {}

    /** A tensor [out, in], or [in, out], of a linear layer. A rank has some of its ranges. */
    private record Part(String name, boolean cutInputs, List<ShardRange> ranges) {}

    private final ModelConfig config;
    private final WeightType type;
    private final RowBuffer rows;
    private final boolean gpt2;
    private final String root;
    private final boolean first; // whose biases are added to sums over ranks
    private final SafetensorsFolder files;
    private final @Nullable Adapter adapter; // whose updates are added to the weights
    private final List<PackedWeight> packed = new ArrayList<>();
    final List<Layer> layers = new ArrayList<>();

    final ShardRange queryHeads;
    final ShardRange keyHeads;
    final ShardRange hidden;
    final ShardRange ids;
    final Norm norm;
    final PackedWeight head;
    final TableRows embedding;
    final @Nullable TableRows positions;

    RankWeights(
            ModelConfig config,
            SafetensorsFolder files,
            @Nullable Adapter adapter,
            WeightType type,
            int rank,
            int ranks,
            RowBuffer rows,
            NDManager manager)
            throws IOException {
        this.config = config;
        this.files = files;
        this.adapter = adapter;
        this.type = type;
        this.rows = rows;
        first = rank == 0;
        gpt2 = config.getModelType().equals("gpt2");
        root = gpt2 ? (has("transformer.wte.weight") ? "transformer." : "") : "model.";
        int dim = config.getHeadDim();
        checkRanks(config, ranks);
        queryHeads = Cut.balanced(config.getHeads(), ranks).getRange(rank);
        keyHeads =
                AxisPart.keyValueHeads(config.getHeads(), config.getKeyValueHeads(), 1)
                        .cut(ranks)
                        .getRange(rank);
        hidden = Cut.balanced(config.getHiddenFeatures(), ranks).getRange(rank);
        ids = Cut.balanced(config.getVocabularySize(), ranks).getRange(rank);
        embedding = table(gpt2 ? "wte.weight" : "embed_tokens.weight");
        positions = gpt2 ? table("wpe.weight") : null;
        norm = norm(gpt2 ? "ln_f" : "norm", manager);
        for (int i = 0; i < config.getLayers(); i++) {
            layers.add(gpt2 ? gpt2Layer("h." + i + ".", dim, manager) : layer(i, dim, manager));
        }
        String tied = root + (gpt2 ? "wte.weight" : "embed_tokens.weight");
        String ofHead = config.isTied() ? tied : "lm_head.weight";
        head = pack(List.of(new Part(ofHead, false, List.of(ids))), List.of(), manager);
    }

    /**
     * Checks that a model can be cut.
     *
     * @throws IllegalArgumentException if there are more ranks than heads or hidden features
     */
    static void checkRanks(ModelConfig config, int ranks) {
        Errors.check(
                ranks <= config.getHeads(),
                "%s ranks are more than the %s query heads of the model, and a head cannot be"
                        + " divided. Use at most %2$s ranks",
                ranks,
                config.getHeads());
        int least = Math.min(config.getHiddenFeatures(), config.getVocabularySize());
        Errors.check(
                ranks <= least,
                "%s ranks are more than the %s hidden features or token ids of the model. Use at"
                        + " most %2$s ranks",
                ranks,
                least);
    }

    private boolean has(String name) {
        return files.get(name) != null;
    }

    private Layer layer(int index, int dim, NDManager manager) throws IOException {
        String at = "layers." + index + ".";
        String attention = at + "self_attn.";
        List<Part> input = new ArrayList<>();
        List<Part> biases = new ArrayList<>();
        ShardRange[] heads = {queryHeads, keyHeads, keyHeads};
        String[] names = {"q_proj", "k_proj", "v_proj"};
        for (int i = 0; i < names.length; i++) {
            List<ShardRange> own = List.of(scaled(heads[i], dim, 0));
            input.add(new Part(root + attention + names[i] + ".weight", false, own));
            if (config.hasQueryKeyValueBias()) {
                biases.add(new Part(root + attention + names[i] + ".bias", false, own));
            }
        }
        boolean norms = config.hasQueryKeyNorm();
        List<ShardRange> features = List.of(hidden);
        List<Part> up = new ArrayList<>();
        List<Part> upBiases = new ArrayList<>();
        for (String name :
                config.isGated()
                        ? new String[] {"gate_proj", "up_proj"}
                        : new String[] {"up_proj"}) {
            up.add(new Part(root + at + "mlp." + name + ".weight", false, features));
            if (config.hasMlpBias()) {
                upBiases.add(new Part(root + at + "mlp." + name + ".bias", false, features));
            }
        }
        return new Layer(
                norm(at + "input_layernorm", manager),
                pack(input, biases, manager),
                norms ? vector(attention + "q_norm.weight", manager) : null,
                norms ? vector(attention + "k_norm.weight", manager) : null,
                packRows(
                        attention + "o_proj",
                        scaled(queryHeads, dim, 0),
                        config.hasOutputBias(),
                        manager),
                norm(at + "post_attention_layernorm", manager),
                pack(up, upBiases, manager),
                packRows(at + "mlp.down_proj", hidden, config.hasMlpBias(), manager));
    }

    private Layer gpt2Layer(String at, int dim, NDManager manager) throws IOException {
        int width = config.getHeads() * dim;
        List<ShardRange> own = new ArrayList<>();
        for (int i = 0; i < 3; i++) { // queries, keys and values are stacked
            own.add(scaled(queryHeads, dim, (long) i * width));
        }
        List<ShardRange> features = List.of(hidden);
        String input = root + at + "attn.c_attn.";
        String up = root + at + "mlp.c_fc.";
        return new Layer(
                norm(at + "ln_1", manager),
                pack(
                        List.of(new Part(input + "weight", false, own)),
                        List.of(new Part(input + "bias", false, own)),
                        manager),
                null,
                null,
                packRows(at + "attn.c_proj", scaled(queryHeads, dim, 0), true, manager),
                norm(at + "ln_2", manager),
                pack(
                        List.of(new Part(up + "weight", false, features)),
                        List.of(new Part(up + "bias", false, features)),
                        manager),
                packRows(at + "mlp.c_proj", hidden, true, manager));
    }

    private static ShardRange scaled(ShardRange heads, int dim, long start) {
        return new ShardRange(start + heads.start() * dim, heads.length() * dim);
    }

    /** Packs a layer whose inputs are cut. The rank that is first adds its bias, for all. */
    private PackedWeight packRows(String name, ShardRange inputs, boolean biased, NDManager manager)
            throws IOException {
        List<ShardRange> whole = List.of(new ShardRange(0, config.getWidth()));
        return pack(
                List.of(new Part(root + name + ".weight", true, List.of(inputs))),
                biased && first
                        ? List.of(new Part(root + name + ".bias", false, whole))
                        : List.of(),
                manager);
    }

    private PackedWeight pack(List<Part> weights, List<Part> biases, NDManager manager)
            throws IOException {
        try (NDManager scope = manager.newSubManager()) {
            NDArray weight = stack(weights, scope);
            NDArray bias = biases.isEmpty() ? null : stack(biases, scope);
            PackedWeight each = PackedWeight.of(weight, bias, type.type(), rows);
            packed.add(each);
            return each;
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(weights.get(0).name() + ": " + e.getMessage(), e);
        }
    }

    private NDArray stack(List<Part> parts, NDManager manager) throws IOException {
        NDList all = new NDList();
        for (Part part : parts) {
            all.add(read(part, manager));
        }
        return all.size() == 1 ? all.get(0) : NDArrays.concat(all, 0);
    }

    private NDArray read(Part part, NDManager manager) throws IOException {
        boolean matrix = stored(part.name()).shape().dimension() == 2;
        // GPT-2 has its linear layers, all but the head, as [in, out]
        boolean turned = gpt2 && matrix && !part.name().endsWith("wte.weight");
        turned &= !part.name().equals("lm_head.weight");
        int axis = part.cutInputs() == turned ? 0 : 1;
        NDArray array =
                files.fileOf(part.name())
                        .read(part.name(), matrix ? axis : 0, part.ranges(), manager)
                        .toType(DataType.FLOAT32, false);
        NDArray own = turned ? array.transpose() : array;
        return adapter == null
                ? own
                : adapter.merged(part.name(), own, part.cutInputs(), part.ranges());
    }

    private StoredTensor stored(String name) throws IOException {
        StoredTensor tensor = files.get(name);
        if (tensor == null) {
            throw new FileNotFoundException("There is no tensor " + name + " in " + files);
        }
        return tensor;
    }

    private float[] vector(String name, NDManager manager) throws IOException {
        String full = root + name;
        stored(full);
        try (NDArray array = files.fileOf(full).read(full, manager)) {
            return array.toType(DataType.FLOAT32, false).toFloatArray();
        }
    }

    private Norm norm(String name, NDManager manager) throws IOException {
        return new Norm(
                vector(name + ".weight", manager),
                config.isRmsNorm() ? null : vector(name + ".bias", manager));
    }

    private TableRows table(String name) throws IOException {
        return new TableRows(files, stored(root + name));
    }

    /** Returns the memory of the packed weights. */
    long bytes() {
        return packed.stream().mapToLong(PackedWeight::getBytes).sum();
    }

    @Override
    public void close() {
        packed.forEach(PackedWeight::close);
        packed.clear();
    }

    /** Rows of a table that stays in its file. */
    static final class TableRows {

        private final SafetensorsFolder files;
        private final StoredTensor tensor;
        private final int width;
        private final ByteBuffer bytes;

        TableRows(SafetensorsFolder files, StoredTensor tensor) {
            this.files = files;
            this.tensor = tensor;
            Shape shape = tensor.shape();
            width = Math.toIntExact(shape.get(1));
            bytes = ByteBuffer.allocateDirect(width * tensor.dataType().getNumOfBytes());
            bytes.order(ByteOrder.LITTLE_ENDIAN);
        }

        /** Adds a row to numbers. */
        void add(int row, float[] to, int at) throws IOException {
            bytes.clear();
            files.fileOf(tensor.name()).read(tensor, (long) row * bytes.capacity(), bytes);
            bytes.flip();
            for (int i = 0; i < width; i++) {
                to[at + i] += number(i);
            }
        }

        private float number(int i) {
            return switch (tensor.dataType()) {
                case FLOAT32 -> bytes.getFloat(4 * i);
                case FLOAT64 -> (float) bytes.getDouble(8 * i);
                case BFLOAT16 -> Float.intBitsToFloat(bytes.getShort(2 * i) << 16);
                default -> half(bytes.getShort(2 * i));
            };
        }

        /** Returns a number of its bits in float16. */
        static float half(int bits) {
            int exponent = bits >> 10 & 0x1f;
            int fraction = bits & 0x3ff;
            float size =
                    switch (exponent) {
                        case 0 -> fraction * 0x1p-24f;
                        case 31 -> fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN;
                        default -> (1024 + fraction) * (float) Math.scalb(1.0, exponent - 25);
                    };
            return (bits & 0x8000) == 0 ? size : -size;
        }
    }
}
