package io.djltp.nn.attention;

import ai.djl.util.Preconditions;

import io.djltp.nn.ParallelDropout;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.torch.Precision;

/**
 * What a {@link ParallelMultiHeadAttention} is built of.
 *
 * @param <T> the builder
 */
public abstract class AttentionBuilder<T extends AttentionBuilder<T>> {

    long embedding;
    int heads;
    int keyValueHeads;
    long headDim;
    boolean bias = true;
    boolean outputBias = true;
    boolean causal;
    boolean fusedQkv;
    boolean crossAttention;
    boolean sequenceParallel;
    boolean recomputeCore;
    RotaryEmbedding rotary;
    Precision precision = Precision.FLOAT32;
    private float dropoutRate;
    private float normEpsilon;

    /** Creates a builder. */
    protected AttentionBuilder() {}

    /**
     * Returns this builder.
     *
     * @return this builder
     */
    protected abstract T self();

    /**
     * Sets the features of the output, and without {@code optHeadDim} those of all heads together.
     *
     * @param embedding the number of features
     * @return this builder
     */
    public T setEmbeddingSize(long embedding) {
        this.embedding = embedding;
        return self();
    }

    /**
     * Sets the number of query heads, which need not be divisible by that of the ranks.
     *
     * @param heads the number of heads
     * @return this builder
     */
    public T setHeads(int heads) {
        this.heads = heads;
        return self();
    }

    /**
     * Sets the number of key/value heads (grouped-query attention; 1: multi-query). Default: that
     * of the query heads.
     *
     * @param keyValueHeads a divisor of the number of query heads
     * @return this builder
     */
    public T optKeyValueHeads(int keyValueHeads) {
        Preconditions.checkArgument(
                keyValueHeads > 0, "Key/value heads must be 1 or more, not " + keyValueHeads);
        this.keyValueHeads = keyValueHeads;
        return self();
    }

    /**
     * Sets the features of a head. Default: those of the embedding, divided by the heads.
     *
     * @param headDim the number of features
     * @return this builder
     */
    public T optHeadDim(long headDim) {
        Preconditions.checkArgument(
                headDim > 0, "The features of a head must be 1 or more, not " + headDim);
        this.headDim = headDim;
        return self();
    }

    /**
     * Sets whether the projections of queries, keys, values and the output have a bias. Default:
     * true.
     *
     * @param bias whether there is a bias
     * @return this builder
     */
    public T optBias(boolean bias) {
        this.bias = bias;
        outputBias = bias;
        return self();
    }

    /**
     * Sets whether the output projection has a bias, after {@link #optBias}. Default: as the
     * others.
     *
     * @param outputBias whether there is a bias
     * @return this builder
     */
    public T optOutputBias(boolean outputBias) {
        this.outputBias = outputBias;
        return self();
    }

    /**
     * Sets whether position t sees the positions 0 to t only, as in a decoder. Default: false.
     *
     * @param causal whether the future is masked
     * @return this builder
     */
    public T optCausal(boolean causal) {
        this.causal = causal;
        return self();
    }

    /**
     * Sets rotary positions of queries and keys. Default: none.
     *
     * @param rotary the positions
     * @return this builder
     */
    public T optRotary(RotaryEmbedding rotary) {
        this.rotary = rotary;
        return self();
    }

    /**
     * Sets with what probability the weight of a key is set to 0 in training, by a {@link
     * ParallelDropout}: the result does not depend on the number of ranks. Default: 0.
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
     * Sets whether queries, keys and values have one weight, in which they are stacked in this
     * order, and are one matrix product. Default: false, three weights. The communication is the
     * same.
     *
     * @param fusedQkv whether they are stacked
     * @return this builder
     */
    public T optFusedQkv(boolean fusedQkv) {
        this.fusedQkv = fusedQkv;
        return self();
    }

    /**
     * Sets whether keys and values are made of a second input, such as the output of an encoder.
     * Default: false.
     *
     * @param crossAttention whether there is a second input
     * @return this builder
     */
    public T optCrossAttention(boolean crossAttention) {
        this.crossAttention = crossAttention;
        return self();
    }

    /**
     * Sets that each head's queries and keys are normalized by an {@link RmsNorm} over the features
     * of the head, before they are rotated. Default: not.
     *
     * @param epsilon what is added to the mean of the squares, such as 1e-6
     * @return this builder
     */
    public T optQueryKeyNorm(float epsilon) {
        Preconditions.checkArgument(
                epsilon > 0, "The epsilon of a normalization must be above 0, not " + epsilon);
        normEpsilon = epsilon;
        return self();
    }

    /**
     * Sets whether the tokens of x (and memory) and of the output are cut over the tensor-parallel
     * ranks, as a {@link io.djltp.nn.SequenceScatter} leaves them: the block gathers them, computes
     * its heads of all, and scatters the sum. Masks are of all tokens. With one tensor-parallel
     * rank this has no effect. Default: false.
     *
     * @param sequenceParallel whether the tokens are cut
     * @return this builder
     */
    public T optSequenceParallel(boolean sequenceParallel) {
        this.sequenceParallel = sequenceParallel;
        return self();
    }

    /**
     * Sets whether the weights of the keys are dropped in training and computed again, from queries
     * and keys, in the backward pass: Megatron-LM's selective recomputation (Korthikanti et al.,
     * 2022, <a href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>). Nothing is
     * communicated again. Of use with {@link #optDropout}: without it libtorch's kernel keeps no
     * weights anyway. Default: false.
     *
     * @param recomputeCore whether they are computed again
     * @return this builder
     */
    public T optRecomputeCore(boolean recomputeCore) {
        this.recomputeCore = recomputeCore;
        return self();
    }

    /**
     * Sets the precision of the products of the projections: to queries, keys and values, and of
     * the output. Scores, softmax and weighted values are float32 in any. Default: float32.
     *
     * @param precision float32 or bfloat16
     * @return this builder
     */
    public T optPrecision(Precision precision) {
        this.precision = precision;
        return self();
    }

    /** Checks what belongs together. */
    void check() {
        AttentionShape shape = shape();
        Preconditions.checkArgument(
                !(crossAttention && causal),
                "Cross-attention cannot be causal: positions of two sequences have no order");
        Preconditions.checkArgument(
                !(crossAttention && fusedQkv),
                "With cross-attention queries are made of another input than keys and values, and"
                        + " cannot be stacked with them: leave optFusedQkv out");
        Preconditions.checkArgument(
                !(crossAttention && rotary != null),
                "Cross-attention has no rotary positions: those of two sequences have no distance");
        if (rotary != null) {
            rotary.check(shape.headDim());
        }
    }

    AttentionShape shape() {
        return AttentionShape.of(embedding, heads, keyValueHeads, headDim);
    }

    RmsNorm norm() {
        return normEpsilon == 0 ? null : RmsNorm.builder().optEpsilon(normEpsilon).build();
    }

    ParallelDropout dropout() {
        return dropoutRate == 0 ? null : ParallelDropout.builder().optRate(dropoutRate).build();
    }
}
