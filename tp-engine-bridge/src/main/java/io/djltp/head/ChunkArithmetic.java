package io.djltp.head;

import io.djltp.internal.torch.Brgemm;

import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The operations of a {@link ChunkWorker} on a chunk that a precision decides: the three products,
 * the exponentials, and in which type these are kept. Here everything is float32. Logits, and what
 * is one number for each row, are float32 in {@link RoundedArithmetic} too.
 */
class ChunkArithmetic {

    final HeadPass pass;
    final ChunkMemory memory;
    final ChunkedLinear linear;
    private Tensor features; // [features, rows]

    ChunkArithmetic(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
        this.pass = pass;
        this.memory = memory;
        this.linear = linear;
    }

    /** Returns the arithmetic of a pass. */
    static ChunkArithmetic of(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
        return switch (pass.precision) {
            case BFLOAT16 -> new RoundedArithmetic.BFloat16(pass, memory, linear);
            case FLOAT16 -> new RoundedArithmetic.Float16(pass, memory, linear);
            default -> new ChunkArithmetic(pass, memory, linear);
        };
    }

    static ScalarTypeOptional floats() {
        return new ScalarTypeOptional(ScalarType.Float);
    }

    /** Begins to compute in the calling thread. */
    void begin() {
        features = pass.transposedFeatures();
    }

    /** Ends it. */
    void end() {
        // begin has set nothing up
    }

    /**
     * Computes the logits of a chunk in memory that is changed later, float32 [classes of the
     * chunk, rows].
     *
     * @param index the chunk
     * @param weight its weights, float32 [classes of the chunk, features]
     */
    Tensor logits(int index, Tensor weight) {
        Tensor logits = memory.logits(index);
        linear.classMajor(index, logits, features, pass.rows, weight);
        return logits;
    }

    /** Returns the {@link #logits} of a chunk as one vector. */
    Tensor flat(int index, Tensor logits) {
        return memory.flatLogits(index);
    }

    /**
     * Lets the pass and a chunk agree about the logits of the labels. In float32 the pass notes
     * them as they go into the normaliser; those with a margin are there, and go into the chunk.
     *
     * @param places where they are in the logits of the chunk, counted from the first of all
     * @param ofLabels the part of {@link HeadPass#labelLogits} that is theirs
     * @param flat the logits of the chunk as one vector
     * @param again whether the chunk is computed a second time
     */
    void labelLogits(Tensor places, Tensor ofLabels, Tensor flat, boolean again) {
        if (linear.isUnit()) {
            flat.index_copy_(0, places, ofLabels);
        } else if (!again) {
            torch.index_select_out(ofLabels, flat, 0, places);
        }
    }

    /** Puts the largest logit of each row into a tensor, [rows]. */
    void largest(Tensor target, Tensor logits) {
        torch.amax_out(target, logits, new long[] {0}, false);
    }

    /** Subtracts an offset of each row, [rows], from logits. */
    void subtract(Tensor logits, Tensor offset) {
        logits.sub_(offset);
    }

    /** Puts the exponentials into the place of logits. */
    void exp(Tensor logits) {
        logits.exp_();
    }

    /** Computes the sums of a chunk's exponentials and returns them, float32 [rows]. */
    Tensor sum(int index, Tensor exponentials) {
        Tensor sum = memory.chunkSum(index);
        return torch.mv_out(sum, memory.transposedLogits(index), memory.ones(index));
    }

    /** Keeps a chunk's exponentials, or leaves them where they last until the next chunk. */
    void keep(int index, Tensor exponentials) {
        // they were computed in the place where they are kept
    }

    /** Returns what {@link #keep} has kept, [classes of the chunk, rows]. */
    Tensor kept(int index) {
        return memory.logits(index);
    }

    /** Adds the product of a chunk's exponentials, which were kept, and weights to products. */
    void addProducts(int index, Tensor weight, Tensor products) {
        products.addmm_(memory.transposedLogits(index), weight);
    }

    /**
     * Adds a product of factors and the weights of a chunk, whose logits were computed last.
     *
     * @param index the chunk
     * @param factors the factors, float32 [classes of the chunk, rows]
     * @param weight the weights
     * @param products what is added to, [rows, features]
     */
    void addProducts(int index, Tensor factors, Tensor weight, Tensor products) {
        products.addmm_(factors.t(), weight);
    }

    /** Puts the product of kept exponentials and a factor of each row into a tensor, [classes]. */
    void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
        torch.mv_out(target, exponentials, factor);
    }

    /**
     * Returns the gradient of a chunk's weights.
     *
     * @param index the chunk
     * @param left the first factor: what was kept, or the gradient of the logits in float32
     *     [classes of the chunk, rows of the batch]
     * @param x the second factor, [rows, features]
     */
    WeightProduct product(int index, Tensor left, Tensor x) {
        return (target, keep, factor) -> Brgemm.add(left, x, target, keep, factor);
    }

    /** A product with the shape of a chunk's weights, computed where it is wanted. */
    @FunctionalInterface
    interface WeightProduct {

        /**
         * Computes {@code target = keep * target + factor * product}.
         *
         * @param target what is added to, float32 [classes of the chunk, features]
         * @param keep the factor of the target
         * @param factor the factor of the product
         */
        void addTo(Tensor target, float keep, float factor);
    }
}
