package io.djltp.nn.transformer;

import io.djltp.internal.Errors;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;

import org.jspecify.annotations.Nullable;

import java.util.List;

/**
 * A layer of a transformer's decoder over ranks: causal self-attention, optionally attention to the
 * output of an encoder, and MLP, each with a residual connection and a norm.
 *
 * <ul>
 *   <li>inputs: x [B, T, D], the same on all ranks of the tensor-parallel group, and optionally a
 *       mask [B, T] or [B, T, T]; with cross-attention x, memory [B, S, M], and optionally a mask
 *       of the memory, [B, S] or [B, T, S], and after it one of x
 *   <li>output: [B, T, D], the same on all ranks
 * </ul>
 *
 * <p>Collectives: two all-reduces forward, two backward, each of [B, T, D]; with cross-attention
 * three, and three and one of the memory's gradient.
 */
public class ParallelTransformerDecoderLayer extends AbstractTransformerLayer {

    private final boolean crossed;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // the children are those of a parent class
    protected ParallelTransformerDecoderLayer(Builder builder) {
        super(builder);
        crossed = builder.crossAttention != null;
        add("attention", builder.attention(), builder);
        if (builder.crossAttention != null) {
            add("crossAttention", builder.crossAttention, builder);
        }
        add("mlp", builder.mlp(), builder);
    }

    /** {@inheritDoc} */
    @Override
    void checkInputs(int count) {
        Errors.check(
                !crossed || count > 1,
                "A ParallelTransformerDecoderLayer with cross-attention needs two inputs, x [B, T,"
                        + " D] and the memory [B, S, M] that it attends to, such as the output of"
                        + " an encoder, and has one. Give it both, or build it without"
                        + " optCrossAttention");
    }

    /** {@inheritDoc} */
    @Override
    <T> List<T> othersOf(String part, List<T> inputs) {
        int first = Math.min(inputs.size(), crossed ? 3 : 1); // mask of x
        if (part.equals("crossAttention")) {
            return inputs.subList(1, first);
        }
        return part.equals("attention") ? inputs.subList(first, inputs.size()) : List.of();
    }

    /**
     * Returns a layer of Llama: RMS norms before its parts, rotary positions, grouped queries, a
     * MLP gated by SiLU, and no biases.
     *
     * @param width the features D of the layer
     * @param heads the number of query heads
     * @param keyValueHeads the number of key/value heads
     * @param hidden the hidden features of the MLP
     * @param rotary the positions
     * @param epsilon the epsilon of the norms
     * @return the layer
     */
    public static ParallelTransformerDecoderLayer llama(
            long width,
            int heads,
            int keyValueHeads,
            long hidden,
            RotaryEmbedding rotary,
            float epsilon) {
        return builder()
                .setAttention(
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(width)
                                .setHeads(heads)
                                .optKeyValueHeads(keyValueHeads)
                                .optRotary(rotary)
                                .optCausal(true)
                                .optBias(false)
                                .build())
                .setMlp(
                        ParallelMlp.builder()
                                .setUnits(width)
                                .setHiddenFeatures(hidden)
                                .optGated(true)
                                .optBias(false)
                                .build())
                .setNorm(() -> RmsNorm.builder().optEpsilon(epsilon).build())
                .optPreNorm(true)
                .build();
    }

    /**
     * Creates a builder to build a {@code ParallelTransformerDecoderLayer}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ParallelTransformerDecoderLayer}. */
    public static class Builder extends AbstractTransformerLayer.Builder<Builder> {

        private @Nullable ParallelMultiHeadAttention crossAttention;

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets attention to a second input, the output of an encoder. Default: none.
         *
         * @param crossAttention the attention, built with {@code optCrossAttention(true)}
         * @return this builder
         */
        public Builder optCrossAttention(ParallelMultiHeadAttention crossAttention) {
            Errors.check(
                    crossAttention.isCrossAttention(),
                    "The cross-attention of a decoder layer takes two inputs: build it with"
                            + " optCrossAttention(true)");
            this.crossAttention = crossAttention;
            return this;
        }

        /**
         * Builds the layer.
         *
         * @return the layer
         * @throws IllegalArgumentException if a part is missing, or the self-attention sees the
         *     future
         */
        public ParallelTransformerDecoderLayer build() {
            check();
            Errors.check(
                    attention().isCausal(),
                    "The self-attention of a decoder layer must not see later positions: build it"
                            + " with optCausal(true)");
            return new ParallelTransformerDecoderLayer(this);
        }
    }
}
