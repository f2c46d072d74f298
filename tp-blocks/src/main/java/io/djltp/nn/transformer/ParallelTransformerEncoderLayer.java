package io.djltp.nn.transformer;

import ai.djl.nn.Activation;
import ai.djl.nn.norm.LayerNorm;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;

import java.util.List;

/**
 * A layer of a transformer's encoder over ranks: self-attention and MLP, each with a residual
 * connection and a norm.
 *
 * <ul>
 *   <li>inputs: x [B, T, D], the same on all ranks of the tensor-parallel group, and optionally a
 *       mask of {@link ParallelMultiHeadAttention}, [B, T] or [B, T, T]
 *   <li>output: [B, T, D], the same on all ranks
 * </ul>
 *
 * <p>Heads and the hidden features of the MLP are cut; norms, residuals and their dropout are
 * computed alike on all ranks. Collectives: two all-reduces forward, two backward, each of [B, T,
 * D].
 *
 * <p>Vaswani et al., 2017, <a href="https://arxiv.org/abs/1706.03762">arXiv:1706.03762</a>; the cut
 * is that of Megatron-LM, <a href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>.
 */
public class ParallelTransformerEncoderLayer extends AbstractTransformerLayer {

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // the children are those of a parent class
    protected ParallelTransformerEncoderLayer(Builder builder) {
        super(builder);
        add("attention", builder.attention(), builder);
        add("mlp", builder.mlp(), builder);
    }

    /** {@inheritDoc} */
    @Override
    <T> List<T> othersOf(String part, List<T> inputs) {
        return part.equals("attention") ? inputs.subList(1, inputs.size()) : List.of();
    }

    /**
     * Returns a layer of BERT: biases everywhere, GELU by the error function, and layer norms with
     * an epsilon of 1e-12 after the sums.
     *
     * @param width the features D of the layer
     * @param heads the number of heads
     * @param hidden the hidden features of the MLP
     * @param dropout the probability of dropout, of attention weights as well
     * @return the layer
     */
    public static ParallelTransformerEncoderLayer bert(
            long width, int heads, long hidden, float dropout) {
        return builder()
                .setAttention(
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(width)
                                .setHeads(heads)
                                .optDropout(dropout)
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(width)
                                .setHiddenFeatures(hidden)
                                .optActivation(Activation.geluBlock())
                                .build())
                .setNorm(() -> LayerNorm.builder().axis(2).optEpsilon(1e-12f).build())
                .optDropout(dropout)
                .build();
    }

    /**
     * Creates a builder to build a {@code ParallelTransformerEncoderLayer}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ParallelTransformerEncoderLayer}. */
    public static class Builder extends AbstractTransformerLayer.Builder<Builder> {

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Builds the layer.
         *
         * @return the layer
         * @throws IllegalArgumentException if a part is missing, or the attention is not one of the
         *     layer's own input
         */
        public ParallelTransformerEncoderLayer build() {
            check();
            return new ParallelTransformerEncoderLayer(this);
        }
    }
}
