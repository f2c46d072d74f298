package io.djltp.internal.decode;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.decode.PackedWeight.Type;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;

/**
 * The layers of BERT on one rank, for the tokens of any texts as rows of one product, without
 * padding: its heads and its hidden features, with a sum over the ranks behind attention and MLP.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class EncoderLayers {

    private final int heads; // of the rank
    private final double epsilon;
    private final RowActivation activation;
    private final RankRows ranks;
    private final Norm first;
    private final List<Layer> layers;

    /**
     * A linear layer.
     *
     * @param weight the rank's part of the weight, [out, in]
     * @param bias its bias, [out], or {@code null}
     */
    public record Linear(PackedWeight weight, @Nullable NDArray bias) {

        /**
         * Packs a weight for products in the threads of the calling rank.
         *
         * @param weight the rank's part of the weight, [out, in], not used afterwards
         * @param bias its bias, [out], or {@code null}
         * @param rows with room for a row
         * @return the layer
         */
        public static Linear of(NDArray weight, @Nullable NDArray bias, RowBuffer rows) {
            DecodeKernels best = DecodeKernels.find(Type.FLOAT32);
            DecodeKernels kernel =
                    best == DecodeKernels.ONEDNN_FLOAT32 ? best : DecodeKernels.PLAIN;
            return new Linear(PackedWeight.of(weight, null, Type.FLOAT32, rows, kernel), bias);
        }

        private Tensor of(Tensor x) {
            Tensor y = weight.product(x);
            return bias == null ? y : y.add_(tensor(bias));
        }
    }

    /**
     * A layer norm.
     *
     * @param weight the weight, [width]
     * @param bias the bias, [width]
     */
    public record Norm(NDArray weight, NDArray bias) {}

    /**
     * A layer. Of output and down, one rank has the bias.
     *
     * @param queryKeyValue the queries, keys and values of the rank's heads, stacked
     * @param output the output of the attention, of the rank's heads
     * @param attentionNorm the norm behind the attention
     * @param up the rank's hidden features
     * @param down the output of the MLP
     * @param mlpNorm the norm behind the MLP
     */
    public record Layer(
            Linear queryKeyValue,
            Linear output,
            Norm attentionNorm,
            Linear up,
            Linear down,
            Norm mlpNorm) {

        /** Frees the weights of the linear layers. */
        public void close() {
            for (Linear each : List.of(queryKeyValue, output, up, down)) {
                each.weight().close();
            }
        }
    }

    /**
     * Creates the layers.
     *
     * @param heads the heads of the rank
     * @param epsilon what norms add to variances
     * @param activation the function of the MLP
     * @param first the norm of the embeddings
     * @param layers the layers, whose arrays belong to the caller
     * @param ranks sums over the ranks
     */
    public EncoderLayers(
            int heads,
            double epsilon,
            RowActivation activation,
            Norm first,
            List<Layer> layers,
            RankRows ranks) {
        this.heads = heads;
        this.epsilon = epsilon;
        this.activation = activation;
        this.first = first;
        this.layers = List.copyOf(layers);
        this.ranks = ranks;
    }

    private static Tensor tensor(NDArray array) {
        return TensorView.of(array).tensor();
    }

    /**
     * Computes the features of tokens.
     *
     * @param x the sums of their embeddings, [tokens, width], one text after another; becomes the
     *     features
     * @param lengths the tokens of each text. Texts of the same length that follow one another are
     *     faster
     */
    public void compute(float[] x, int[] lengths) {
        int width = Math.toIntExact(first.weight().size());
        int count = 0;
        for (int length : lengths) {
            count += length;
        }
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor rows = torch.empty(count, width);
            RowBuffer.memoryOf(rows).put(0, x, 0, count * width);
            Tensor result = norm(rows, first);
            for (Layer layer : layers) {
                try (PointerScope each = new PointerScope()) {
                    Tensor y = layer.output().of(attend(layer.queryKeyValue().of(result), lengths));
                    ranks.sum(y);
                    Tensor middle = norm(y.add_(result), layer.attentionNorm());
                    Tensor hidden = layer.up().of(middle);
                    activation.apply(hidden);
                    Tensor z = layer.down().of(hidden);
                    ranks.sum(z);
                    result.copy_(norm(z.add_(middle), layer.mlpNorm()));
                }
            }
            RowBuffer.read(result, x, count * width);
        }
    }

    private Tensor norm(Tensor x, Norm norm) {
        return torch.layer_norm(
                x,
                new long[] {x.size(1)},
                new TensorOptional(tensor(norm.weight())),
                new TensorOptional(tensor(norm.bias())),
                epsilon,
                false);
    }

    /** Returns the attention of each text, [tokens, features of the heads]. */
    private Tensor attend(Tensor all, int[] lengths) {
        long features = all.size(1) / 3 / heads;
        List<Tensor> parts = new ArrayList<>();
        int from = 0;
        for (int i = 0; i < lengths.length; ) {
            int same = i;
            while (same < lengths.length && lengths[same] == lengths[i]) {
                same++;
            }
            int texts = same - i;
            int length = lengths[i];
            Tensor heads3 = // [3, texts, heads, tokens, features]
                    all.narrow(0, from, (long) texts * length)
                            .view(texts, length, 3, heads, features)
                            .permute(2, 0, 3, 1, 4);
            Tensor mixed =
                    torch.scaled_dot_product_attention(
                            heads3.select(0, 0), heads3.select(0, 1), heads3.select(0, 2));
            parts.add(
                    mixed.transpose(1, 2)
                            .reshape((long) texts * length, heads * features)
                            .contiguous());
            from += texts * length;
            i = same;
        }
        return parts.size() == 1
                ? parts.get(0)
                : torch.cat(new TensorVector(parts.toArray(new Tensor[0])), 0);
    }
}
