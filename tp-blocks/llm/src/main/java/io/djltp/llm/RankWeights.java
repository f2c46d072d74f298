package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping.Source;
import io.djltp.internal.Errors;
import io.djltp.internal.decode.PackedWeight;
import io.djltp.internal.decode.RowBuffer;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.sharding.AxisPart;

import org.jspecify.annotations.Nullable;

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

    private static final String EMBEDDING = "embed_tokens.embedding";

    /** A layer. */
    record Layer(
            Norm attentionNorm,
            PackedWeight queryKeyValue,
            @Nullable Norm queryNorm,
            @Nullable Norm keyNorm,
            PackedWeight output,
            Norm mlpNorm,
            PackedWeight hidden, // gate and up, or up
            PackedWeight down) {}

    /** A layer norm, or without a bias an RMS norm. */
    record Norm(float[] weight, float @Nullable [] bias) {}

    /** A tensor [out, in], or transposed, of a linear layer. A rank has some of its ranges. */
    private record Part(
            String name, boolean cutInputs, boolean transposed, List<ShardRange> ranges) {}

    private final ModelConfig config;
    private final WeightType type;
    private final RowBuffer rows;
    private final NetworkTensors tensors;
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
        tensors = new NetworkTensors(config, files);
        checkRanks(config, ranks);
        queryHeads = Cut.balanced(config.getHeads(), ranks).getRange(rank);
        keyHeads =
                AxisPart.keyValueHeads(config.getHeads(), config.getKeyValueHeads(), 1)
                        .cut(ranks)
                        .getRange(rank);
        hidden = Cut.balanced(config.getHiddenFeatures(), ranks).getRange(rank);
        ids = Cut.balanced(config.getVocabularySize(), ranks).getRange(rank);
        embedding = table(EMBEDDING);
        positions = tensors.has("positions.weight") ? table("positions.weight") : null;
        norm = norm("layers.norm.", manager);
        for (int i = 0; i < config.getLayers(); i++) {
            layers.add(layer(i, manager));
        }
        String ofHead = config.isTied() ? EMBEDDING : "lm_head.weight";
        head = pack(rowsOf(List.of(ofHead), List.of(ids)), List.of(), manager);
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

    /**
     * Throws an {@code IOException} if a number that was computed from the weights is not finite.
     */
    static void checkFinite(String what, float value) throws IOException {
        if (!Float.isFinite(value)) {
            throw new IOException(
                    ("%s is %s: the weights of the model have numbers that are not finite, or too"
                                    + " large ones. Copy or train the model again")
                            .formatted(what, value));
        }
    }

    private Layer layer(int index, NDManager manager) throws IOException {
        String at = tensors.layer("layers", index);
        String attention = at + "attention.";
        int dim = config.getHeadDim();
        long queries = (long) config.getHeads() * dim;
        long keys = (long) config.getKeyValueHeads() * dim;
        ShardRange values = scaled(queryHeads, dim, 0);
        List<ShardRange> input =
                List.of(
                        values,
                        scaled(keyHeads, dim, queries),
                        scaled(keyHeads, dim, queries + keys));
        boolean stacked = tensors.has(attention + "queryKeyValue.weight");
        boolean normed = tensors.has(attention + "queryNorm.weight");
        ShardRange up = scaled(hidden, 1, config.getHiddenFeatures());
        return new Layer(
                norm(at + "attentionNorm.", manager),
                packRows(
                        stacked
                                ? List.of(attention + "queryKeyValue.")
                                : List.of(
                                        attention + "query.",
                                        attention + "key.",
                                        attention + "value."),
                        input,
                        manager),
                normed ? norm(attention + "queryNorm.", manager) : null,
                normed ? norm(attention + "keyNorm.", manager) : null,
                packColumns(attention + "output.", values, manager),
                norm(at + "mlpNorm.", manager),
                config.isGated()
                        ? packRows(List.of(at + "mlp.gateUp."), List.of(hidden, up), manager)
                        : packRows(List.of(at + "mlp.up."), List.of(hidden), manager),
                packColumns(at + "mlp.down.", hidden, manager));
    }

    private static ShardRange scaled(ShardRange heads, int dim, long start) {
        return new ShardRange(start + heads.start() * dim, heads.length() * dim);
    }

    /**
     * Packs a layer whose outputs are cut.
     *
     * @param layers the layers of the network, whose outputs follow one another
     * @param ranges which of all outputs
     */
    private PackedWeight packRows(List<String> layers, List<ShardRange> ranges, NDManager manager)
            throws IOException {
        List<String> weights = layers.stream().map(layer -> layer + "weight").toList();
        List<String> biases = layers.stream().map(layer -> layer + "bias").toList();
        return pack(
                rowsOf(weights, ranges),
                tensors.has(biases.get(0)) ? rowsOf(biases, ranges) : List.of(),
                manager);
    }

    /** Packs a layer whose inputs are cut. The rank that is first adds its bias, for all. */
    private PackedWeight packColumns(String layer, ShardRange inputs, NDManager manager)
            throws IOException {
        List<ShardRange> whole = List.of(new ShardRange(0, config.getWidth()));
        Source weight = tensors.get(layer + "weight");
        String bias = layer + "bias";
        return pack(
                List.of(
                        new Part(
                                weight.tensors().get(0),
                                true,
                                weight.transposed(),
                                List.of(inputs))),
                tensors.has(bias) && first ? rowsOf(List.of(bias), whole) : List.of(),
                manager);
    }

    /** Returns in which tensors some rows of parameters are, which follow one another. */
    private List<Part> rowsOf(List<String> parameters, List<ShardRange> ranges) throws IOException {
        List<Part> parts = new ArrayList<>();
        long start = 0;
        for (String parameter : parameters) {
            Source source = tensors.get(parameter);
            for (String tensor : source.tensors()) {
                Shape shape = tensors.stored(tensor).shape();
                long end = start + shape.get(source.transposed() ? 1 : 0);
                List<ShardRange> own = new ArrayList<>();
                for (ShardRange range : ranges) {
                    if (range.start() >= start && range.end() <= end) {
                        own.add(new ShardRange(range.start() - start, range.length()));
                    }
                }
                parts.add(new Part(tensor, false, source.transposed(), own));
                start = end;
            }
        }
        return parts;
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
        return TorchOperations.concat(all, 0);
    }

    private NDArray read(Part part, NDManager manager) throws IOException {
        int axis = part.cutInputs() == part.transposed() ? 0 : 1;
        NDArray array =
                files.fileOf(part.name())
                        .read(part.name(), axis, part.ranges(), manager)
                        .toType(DataType.FLOAT32, false);
        NDArray own = part.transposed() ? array.transpose() : array;
        return adapter == null
                ? own
                : adapter.merged(part.name(), own, part.cutInputs(), part.ranges());
    }

    private float[] vector(String parameter, NDManager manager) throws IOException {
        String name = tensors.name(parameter);
        try (NDArray array = files.fileOf(name).read(name, manager)) {
            return array.toType(DataType.FLOAT32, false).toFloatArray();
        }
    }

    private Norm norm(String layer, NDManager manager) throws IOException {
        return tensors.has(layer + "beta")
                ? new Norm(vector(layer + "gamma", manager), vector(layer + "beta", manager))
                : new Norm(vector(layer + "weight", manager), null);
    }

    private TableRows table(String parameter) throws IOException {
        return new TableRows(files, tensors.stored(tensors.name(parameter)));
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
