package io.djltp.llm;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.decode.EncoderLayers;
import io.djltp.internal.decode.EncoderLayers.Layer;
import io.djltp.internal.decode.EncoderLayers.Linear;
import io.djltp.internal.decode.EncoderLayers.Norm;
import io.djltp.internal.decode.PackedWeight;
import io.djltp.internal.decode.RankRows;
import io.djltp.internal.decode.RowActivation;
import io.djltp.internal.decode.RowBuffer;
import io.djltp.internal.decode.SharedRows;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** An encoder on one rank, which has read its slices. Rows of words stay in the file. */
final class RankEncoder implements AutoCloseable {

    private final SafetensorsFolder files;
    private final NDManager manager; // of the weights
    private final NetworkTensors tensors;
    private final int width;
    private final boolean first; // whose biases are added to sums over ranks
    private final ShardRange whole;
    private final RankWeights.TableRows words;
    private final float[] positions; // with the kind of all tokens
    private final RankRows group;
    private final EncoderLayers layers;
    private final List<Layer> weights = new ArrayList<>();
    private final RowBuffer row; // that packed weights ask for

    RankEncoder(
            ModelConfig config,
            SafetensorsFolder files,
            Communicator ranks,
            @Nullable SharedRows shared)
            throws IOException {
        this.files = files;
        manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
        width = config.getWidth();
        whole = new ShardRange(0, width);
        first = ranks.getRank() == 0;
        tensors = new NetworkTensors(config, files);
        String table = tensors.name("embeddings.words.embedding");
        words = new RankWeights.TableRows(files, tensors.stored(table));
        ShardRange all = new ShardRange(config.getFirstPosition(), config.getMaxPositions());
        try (NDArray rows = read("embeddings.positions", 0, all)) {
            if (config.getTokenTypes() > 0) {
                rows.addi(read("embeddings.kinds", 0, new ShardRange(0, 1)));
            }
            positions = rows.toFloatArray();
        }
        int rank = ranks.getRank();
        int dim = config.getHeadDim();
        ShardRange heads = Cut.balanced(config.getHeads(), ranks.getSize()).getRange(rank);
        ShardRange own = new ShardRange(heads.start() * dim, heads.length() * dim);
        ShardRange hidden =
                Cut.balanced(config.getHiddenFeatures(), ranks.getSize()).getRange(rank);
        row = new RowBuffer(PackedWeight.roomFor(1, Math.max(width, config.getHiddenFeatures())));
        for (int i = 0; i < config.getLayers(); i++) {
            String at = tensors.layer("encoder", i);
            weights.add(
                    new Layer(
                            queryKeyValue(at + "attention.", own),
                            rows(at + "attention.output", own),
                            norm(at + "attentionNorm"),
                            linear(
                                    read(at + "mlp.up.weight", 0, hidden),
                                    read(at + "mlp.up.bias", 0, hidden)),
                            rows(at + "mlp.down", hidden),
                            norm(at + "mlpNorm")));
        }
        group = new RankRows(ranks, shared, 1, 1);
        layers =
                new EncoderLayers(
                        (int) heads.length(),
                        config.getEpsilon(),
                        RowActivation.valueOf(config.getActivation().name()),
                        norm("embeddings.norm"),
                        weights,
                        group);
    }

    private Linear queryKeyValue(String at, ShardRange own) throws IOException {
        NDList weights = new NDList();
        NDList biases = new NDList();
        for (String name : List.of("query", "key", "value")) {
            weights.add(read(at + name + ".weight", 0, own));
            biases.add(read(at + name + ".bias", 0, own));
        }
        try (weights;
                biases) {
            return linear(TorchOperations.concat(weights, 0), TorchOperations.concat(biases, 0));
        }
    }

    private Linear linear(NDArray weight, @Nullable NDArray bias) {
        try (weight) {
            return Linear.of(weight, bias, row);
        }
    }

    /** Reads a layer whose inputs are cut. */
    private Linear rows(String name, ShardRange inputs) throws IOException {
        return linear(
                read(name + ".weight", 1, inputs), first ? read(name + ".bias", 0, whole) : null);
    }

    private Norm norm(String at) throws IOException {
        return new Norm(read(at + ".gamma", 0, whole), read(at + ".beta", 0, whole));
    }

    private NDArray read(String parameter, int axis, ShardRange range) throws IOException {
        String name = tensors.name(parameter);
        NDArray array = files.fileOf(name).read(name, axis, List.of(range), manager);
        return array.toType(DataType.FLOAT32, false);
    }

    /**
     * Computes the features of the tokens of texts, one text after another. All ranks get them.
     *
     * @param texts the ids of each text
     */
    float[] compute(List<long[]> texts) throws IOException {
        int[] lengths = texts.stream().mapToInt(text -> text.length).toArray();
        float[] x = new float[IntStream.of(lengths).sum() * width];
        int at = 0;
        for (long[] text : texts) {
            for (int t = 0; t < text.length; t++) {
                System.arraycopy(positions, t * width, x, at, width);
                words.add((int) text[t], x, at);
                at += width;
            }
        }
        layers.compute(x, lengths);
        for (float feature : x) {
            RankWeights.checkFinite("A feature of a token", feature);
        }
        return x;
    }

    long getAllReduces() {
        return group.getSums();
    }

    @Override
    public void close() {
        group.close();
        weights.forEach(Layer::close);
        row.close();
        manager.close();
    }
}
