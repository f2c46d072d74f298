package io.djltp.nn.transformer;

import ai.djl.nn.Block;
import ai.djl.util.Preconditions;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;

import java.util.function.Supplier;

/**
 * What a layer of a transformer is built of.
 *
 * @param <T> the builder
 */
public abstract class TransformerLayerBuilder<T extends TransformerLayerBuilder<T>> {

    ParallelMultiHeadAttention attention;
    ParallelMlp mlp;
    private Supplier<? extends Block> norm;
    private boolean preNorm;
    private float dropoutRate;
    boolean recompute;

    /** Creates a builder. */
    protected TransformerLayerBuilder() {}

    /**
     * Returns this builder.
     *
     * @return this builder
     */
    protected abstract T self();

    /**
     * Sets the self-attention.
     *
     * @param attention the attention, whose embedding size is the width of the layer
     * @return this builder
     */
    public T setAttention(ParallelMultiHeadAttention attention) {
        this.attention = attention;
        return self();
    }

    /**
     * Sets the MLP.
     *
     * @param mlp the MLP, whose units are the width of the layer
     * @return this builder
     */
    public T setMlp(ParallelMlp mlp) {
        this.mlp = mlp;
        return self();
    }

    /**
     * Sets what makes the norms, such as {@code () -> RmsNorm.builder().build()} or {@code () ->
     * LayerNorm.builder().axis(2).build()}: over the features, the last of three axes.
     *
     * @param norm makes a norm for each part of the layer
     * @return this builder
     */
    public T setNorm(Supplier<? extends Block> norm) {
        this.norm = norm;
        return self();
    }

    /**
     * Sets whether the norm comes before a part of the layer, {@code x + f(norm(x))} as in GPT-2
     * and Llama, and not after the sum, {@code norm(x + f(x))} as in BERT. Default: false.
     *
     * @param preNorm whether the norm comes first
     * @return this builder
     */
    public T optPreNorm(boolean preNorm) {
        this.preNorm = preNorm;
        return self();
    }

    /**
     * Sets the dropout of the output of each part of the layer, before the sum. That of the
     * attention's weights is the attention's own. Default: 0.
     *
     * @param rate the probability, from 0 to 1
     * @return this builder
     */
    public T optDropout(float rate) {
        Preconditions.checkArgument(
                rate >= 0 && rate <= 1, "The rate of dropout must be from 0 to 1, not " + rate);
        dropoutRate = rate;
        return self();
    }

    /**
     * Sets whether the activations of the layer are dropped in training and computed again in the
     * backward pass, as a {@link io.djltp.nn.Recompute} does: of a stack, the inputs of all layers
     * and the activations of one live at a time. Costs a forward pass of the layer and its
     * collectives once more. Parameters have the names that they have without it. Default: false.
     *
     * @param recompute whether they are computed again
     * @return this builder
     */
    public T optRecompute(boolean recompute) {
        this.recompute = recompute;
        return self();
    }

    /** Checks that there is what every layer needs. */
    void check() {
        Preconditions.checkArgument(
                attention != null && mlp != null && norm != null,
                "A transformer layer needs setAttention, setMlp and setNorm");
        Preconditions.checkArgument(
                !attention.isCrossAttention(),
                "setAttention needs self-attention, built without optCrossAttention(true)");
    }

    /** Makes what is around a part. */
    Residual residual(Block part) {
        ParallelDropout dropout =
                dropoutRate == 0 ? null : ParallelDropout.builder().optRate(dropoutRate).build();
        return new Residual(part, norm.get(), dropout, preNorm);
    }
}
