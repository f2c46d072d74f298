package io.djltp.head;

import io.djltp.torch.ShortSumProduct;

import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The operations of a {@link PassWorker} on a chunk that a precision decides: the three products,
 * the exponentials, and in which type these are kept. Logits, and what is one number for each row,
 * are float32 in all of them.
 */
abstract class ChunkArithmetic {

    final FusedPass pass;
    final ChunkBuffers buffers;
    final ChunkedLinear linear;

    ChunkArithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        this.pass = pass;
        this.buffers = buffers;
        this.linear = linear;
    }

    /** Returns the arithmetic of a pass. */
    static ChunkArithmetic of(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        return switch (pass.precision) {
            case BFLOAT16 -> new BFloat16Arithmetic(pass, buffers, linear);
            case FLOAT16 -> new Float16Arithmetic(pass, buffers, linear);
            default -> new WideArithmetic(pass, buffers, linear);
        };
    }

    static ScalarTypeOptional floats() {
        return new ScalarTypeOptional(ScalarType.Float);
    }

    /** Begins to compute in the calling thread. */
    abstract void begin();

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
    abstract Tensor logits(int index, Tensor weight);

    /** Returns the {@link #logits} of a chunk as one vector. */
    Tensor flat(int index, Tensor logits) {
        return logits.view(-1);
    }

    /**
     * Lets the pass and a chunk agree about the logits of the labels.
     *
     * @param places where they are in the logits of the chunk, counted from the first of all
     * @param ofLabels the part of {@link FusedPass#labelLogits} that is theirs
     * @param flat the logits of the chunk as one vector
     */
    abstract void labelLogits(Tensor places, Tensor ofLabels, Tensor flat);

    /**
     * Brings the logits of the labels in a chunk that was computed again to where {@link
     * #labelLogits} has left them in the first pass.
     *
     * @param places as there
     * @param ofLabels as there
     * @param flat as there
     */
    void restoreLabelLogits(Tensor places, Tensor ofLabels, Tensor flat) {
        // labelLogits changed none in the first pass
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
    abstract void exp(Tensor logits);

    /** Computes the sums of a chunk's exponentials and returns them, float32 [rows]. */
    abstract Tensor sum(int index, Tensor exponentials);

    /** Keeps a chunk's exponentials, or leaves them where they last until the next chunk. */
    abstract void keep(int index, Tensor exponentials);

    /** Returns what {@link #keep} has kept, [classes of the chunk, rows]. */
    abstract Tensor kept(int index);

    /** Adds the product of a chunk's exponentials, which were kept, and weights to products. */
    abstract void addProducts(int index, Tensor weight, Tensor products);

    /**
     * Adds a product of factors and the weights of a chunk, whose logits were computed last.
     *
     * @param index the chunk
     * @param factors the factors, float32 [classes of the chunk, rows]
     * @param weight the weights
     * @param products what is added to, [rows, features]
     */
    abstract void addProducts(int index, Tensor factors, Tensor weight, Tensor products);

    /** Puts the product of kept exponentials and a factor of each row into a tensor, [classes]. */
    abstract void addUp(Tensor target, int index, Tensor exponentials, Tensor factor);

    /**
     * Returns the gradient of a chunk's weights.
     *
     * @param index the chunk
     * @param left the first factor: what was kept, or the gradient of the logits in float32
     *     [classes of the chunk, rows of the batch]
     * @param x the second factor, [rows, features]
     */
    abstract WeightProduct product(int index, Tensor left, Tensor x);

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

    /** Everything in float32, and what is kept too. */
    private static final class WideArithmetic extends ChunkArithmetic {

        private ChunkViews views;
        private Tensor features; // [features, rows]

        WideArithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
            super(pass, buffers, linear);
        }

        @Override
        void begin() {
            views = buffers.views();
            features = pass.transposedFeatures();
        }

        @Override
        Tensor logits(int index, Tensor weight) {
            Tensor logits = views.logits(index);
            linear.classMajor(index, logits, features, pass.rows, weight);
            return logits;
        }

        @Override
        Tensor flat(int index, Tensor logits) {
            return views.flat(index);
        }

        /** Notes them as they go into the normaliser. */
        @Override
        void labelLogits(Tensor places, Tensor ofLabels, Tensor flat) {
            torch.index_select_out(ofLabels, flat, 0, places);
        }

        @Override
        void exp(Tensor logits) {
            logits.exp_();
        }

        @Override
        Tensor sum(int index, Tensor exponentials) {
            torch.mv_out(views.sum(index), views.transposed(index), views.ones(index));
            return views.sum(index);
        }

        @Override
        void keep(int index, Tensor exponentials) {
            // the exponentials were computed in the place where they are kept
        }

        @Override
        Tensor kept(int index) {
            return views.logits(index);
        }

        @Override
        void addProducts(int index, Tensor weight, Tensor products) {
            products.addmm_(views.transposed(index), weight);
        }

        @Override
        void addProducts(int index, Tensor factors, Tensor weight, Tensor products) {
            products.addmm_(factors.t(), weight);
        }

        @Override
        void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
            torch.mv_out(target, exponentials, factor);
        }

        @Override
        WeightProduct product(int index, Tensor left, Tensor x) {
            return (target, keep, factor) -> ShortSumProduct.add(left, x, target, keep, factor);
        }
    }
}
