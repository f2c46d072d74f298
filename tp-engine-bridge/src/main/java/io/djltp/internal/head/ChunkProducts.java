package io.djltp.internal.head;

import io.djltp.internal.head.ChunkMemory.Place;
import io.djltp.internal.torch.Brgemm;
import io.djltp.internal.torch.Float16Product;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.OneDnnLinear;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * The three products of a {@link ChunkWorker} on a chunk, in one precision. Their sums are float32.
 *
 * <p>In 16 bits the factors are rounded, the weights of a chunk where its logits are computed. With
 * the unit roundoff u, what rounding a number changes it by at most, relative to it:
 *
 * <ul>
 *   <li>a logit is off by at most {@code (2u + u^2) sum_j |x_j w_j|}: both factors are rounded.
 *       Labels' logits are computed in float64 and rounded once, to float32
 *   <li>the normaliser, sums of float32, is off by as much as its logits are: by a factor of {@code
 *       exp(d)} at most, where d bounds the errors of the row's logits
 *   <li>in the gradient of the features, \(E^T W\), the exponentials and the weights are rounded:
 *       {@code 2u sum_k p_k |w_k|} and the error of p
 *   <li>in the gradient of the weights, \(E X\), the exponentials and the features times their
 *       factors: {@code 2u sum_i p_ik |x_i|} and the error of p
 *   <li>labels are in none of these products: their part of both gradients, {@code p - 1}, is made
 *       from sums in float64, and added in float32
 * </ul>
 */
abstract class ChunkProducts {

    /**
     * Exponentials are powers of two, of logits whose features were multiplied with log2(e):
     * libtorch computes them in a quarter of the time of {@code exp}, which is MKL's.
     */
    static final double LOG2_E = 1 / Math.log(2);

    final HeadPass pass;
    final ChunkMemory memory; // of the worker

    private ChunkProducts(HeadPass pass, ChunkMemory memory) {
        this.pass = pass;
        this.memory = memory;
    }

    /** Returns the products of a pass for a worker thread. */
    static ChunkProducts of(HeadPass pass, ChunkMemory memory) {
        return switch (pass.precision) {
            case BFLOAT16 -> new BFloat16(pass, memory);
            case FLOAT16 -> new Float16(pass, memory);
            default -> new Float32(pass, memory);
        };
    }

    /** Prepares the features, [rows, features], for all worker threads of a pass. */
    static void pack(HeadPass pass, Tensor features) {
        switch (pass.precision) {
            case BFLOAT16 -> BFloat16.pack(pass, features);
            case FLOAT16 -> Float16.pack(pass, features);
            default -> Float32.pack(pass, features);
        }
    }

    /**
     * Computes the logits of a chunk, times {@link HeadPass#unit()}.
     *
     * @param index the chunk
     * @param weight its weights, float32 [classes of the chunk, features]
     * @param logits where they go, float32 [classes of the chunk, rows]
     */
    abstract void multiply(int index, Tensor weight, Tensor logits);

    /**
     * Rounds exponentials, or what is at most as large, or the gradient of logits.
     *
     * @return the target; in float32 the numbers
     */
    abstract Tensor round(Tensor target, Tensor numbers, boolean areGradient);

    /**
     * Adds the product of factors and the weights of a chunk, whose logits were computed last.
     *
     * @param index the chunk
     * @param factors the factors, maybe rounded, [classes of the chunk, rows]
     * @param weight the weights
     * @param products what is added to, [rows, features]
     */
    abstract void addToFeatures(int index, Tensor factors, Tensor weight, Tensor products);

    /**
     * Computes {@code target = keep * target + factor * left * x}.
     *
     * @param left what was kept of a chunk, or a gradient, maybe rounded, [classes of the chunk,
     *     rows]
     * @param x the features, maybe times factors, float32 [rows of the batch, features]
     * @param target what is added to, float32 [classes of the chunk, features]
     * @param keep the factor of the target
     * @param factor the factor of the product
     * @param isNear whether the target has just been read
     */
    abstract void addToWeight(
            Tensor left, Tensor x, Tensor target, float keep, float factor, boolean isNear);

    /** Returns by what kept exponentials are multiplied to be what they are. */
    float ofKept() {
        return 1;
    }

    /** Ends to compute in the calling thread. */
    void end() {
        // nothing was set up
    }

    /** Factors in float32. */
    private static final class Float32 extends ChunkProducts {

        private final Tensor features; // [features, rows]
        private final Tensor scaled; // what was multiplied last with a factor, [rows, features]
        private float factorOfScaled = Float.NaN;

        Float32(HeadPass pass, ChunkMemory memory) {
            super(pass, memory);
            features = pass.memory.transposedFeatures();
            scaled = pass.batch(memory.rows(Place.FEATURES));
        }

        static void pack(HeadPass pass, Tensor features) {
            Tensor transposed = pass.memory.transposedFeatures().copy_(features.t());
            transposed.mul_(new Scalar(pass.unit()));
        }

        @Override
        void multiply(int index, Tensor weight, Tensor logits) {
            Brgemm.multiply(weight, features, logits);
        }

        @Override
        void addToFeatures(int index, Tensor factors, Tensor weight, Tensor products) {
            OneDnnLinear.addTransposed(factors, weight, products);
        }

        @Override
        void addToWeight(
                Tensor left, Tensor x, Tensor target, float keep, float factor, boolean isNear) {
            if (keep != 0 && keep != 1 || !Brgemm.isFaster(left, x, target)) {
                target.addmm_(left, x, new Scalar(keep), new Scalar(factor));
                return;
            }
            if (factorOfScaled != factor || pass.isGuarded()) { // else it is the same for a pass
                // as MKL, which multiplies the factor that it copies
                torch.mul_out(scaled, x, new Scalar(factor));
                factorOfScaled = factor;
            }
            Brgemm.add(left, scaled, target, keep == 1, isNear);
        }

        @Override
        Tensor round(Tensor target, Tensor numbers, boolean areGradient) {
            return numbers;
        }
    }

    /**
     * Factors in bfloat16, u = 2^-8, on processors, where a chunk's weights are rounded in the
     * cache. In the gradient of the features the sum of a chunk is rounded once more: 3u where
     * {@link ChunkProducts} says 2u. Odd numbers of rows and features are rounded up, with zeros.
     */
    private static final class BFloat16 extends ChunkProducts {

        private final Tensor features; // packed
        private float packedFactor = Float.NaN; // of the scaled features that are packed

        BFloat16(HeadPass pass, ChunkMemory memory) {
            super(pass, memory);
            features = packed(pass.memory);
        }

        static void pack(HeadPass pass, Tensor features) {
            ChunkMemory shared = pass.memory;
            long columns = ChunkMemory.even(shared.features());
            Tensor factor = torch.zeros(new long[] {columns, features.size(0)}, shared.options());
            Tensor x = factor.narrow(0, 0, features.size(1));
            torch.mul_out(x, features.t(), new Scalar(pass.unit()));
            packed(shared).copy_(Brgemm.pack(factor));
        }

        private static Tensor packed(ChunkMemory shared) {
            long columns = ChunkMemory.even(shared.features());
            return shared.rounded(Place.ROUNDED_FEATURES, columns / 2, shared.batchRows(), 2);
        }

        @Override
        void end() {
            Brgemm.release();
        }

        @Override
        void multiply(int index, Tensor weight, Tensor logits) {
            Tensor rounded = memory.roundedWeight(index);
            long length = memory.features();
            (rounded.size(1) == length ? rounded : rounded.narrow(1, 0, length)).copy_(weight);
            Brgemm.multiplyPacked(rounded, features, logits, false, true);
        }

        @Override
        Tensor round(Tensor target, Tensor numbers, boolean areGradient) {
            return target.copy_(numbers);
        }

        /** The sum over the chunk is rounded to bfloat16 once, those over chunks are float32. */
        @Override
        void addToFeatures(int index, Tensor factors, Tensor weight, Tensor products) {
            long length = memory.features();
            long columns = ChunkMemory.even(length);
            Tensor place = memory.rounded(Place.ROUNDED_PRODUCT, factors.size(1), columns);
            Tensor product = torch.mm_out(place, factors.t(), memory.roundedWeight(index));
            products.add_(columns == length ? product : product.narrow(1, 0, length));
        }

        @Override
        void addToWeight(
                Tensor left, Tensor x, Tensor target, float keep, float factor, boolean isNear) {
            if (keep != 0 && keep != 1) {
                target.mul_(new Scalar(keep));
            }
            Tensor right = scaled(left.size(1), x, factor);
            Brgemm.multiplyPacked(left, right, target, keep != 0, isNear);
        }

        /** Returns features times a factor as the right factor, the same for a pass's chunks. */
        private Tensor scaled(long rows, Tensor x, float factor) {
            long length = memory.features();
            Tensor place = memory.rounded(Place.ROUNDED_SCALED_FEATURES, rows / 2, length, 2);
            if (packedFactor != factor || pass.isGuarded()) {
                Tensor scaled = torch.zeros(new long[] {rows, length}, memory.options());
                torch.mul_out(scaled.narrow(0, 0, x.size(0)), x, new Scalar(factor));
                place.copy_(Brgemm.pack(scaled));
                packedFactor = factor;
            }
            return place;
        }
    }

    /**
     * Factors in float16, u = 2^-11, on GPUs. It has 5 bits of exponent, so that all factors are
     * scaled by powers of two, see {@link Scales}; the sums are float32, where the scales are taken
     * out. A logit may be as large as in float32.
     *
     * <p>Beside what {@link ChunkProducts} says, a number is off by what it lacks in exponents: a
     * feature by 2^-40 of the batch's largest, an exponential by 2^-40, a weight by 2^-31.
     */
    private static final class Float16 extends ChunkProducts {

        private final Scales scales;
        private final float ofFactors; // the scale of what weights' gradients are made of
        private final Tensor features; // [features, rows]

        Float16(HeadPass pass, ChunkMemory memory) {
            super(pass, memory);
            scales = pass.scales;
            ofFactors = pass.isSmooth() ? scales.ofGradients : Scales.EXPONENTIALS;
            features = packed(pass.memory).t();
        }

        static void pack(HeadPass pass, Tensor features) {
            pass.scales.setFeatures(features);
            double factor = LOG2_E * pass.scales.ofFeatures / 2; // log2(e) is below 2
            scale(packed(pass.memory), features, (float) factor);
        }

        private static Tensor packed(ChunkMemory shared) {
            return shared.rounded(Place.ROUNDED_FEATURES, shared.batchRows(), shared.features());
        }

        /** Rounds what is multiplied in float32: there is no product with a scalar that does. */
        private static Tensor scale(Tensor target, Tensor numbers, float scale) {
            return torch.mul_out(target, numbers, torch.scalar_tensor(new Scalar(scale)));
        }

        @Override
        float ofKept() {
            return 1 / Scales.EXPONENTIALS;
        }

        private Tensor weight(int index) {
            return memory.roundedWeight(index).narrow(1, 0, memory.features());
        }

        @Override
        void multiply(int index, Tensor weight, Tensor logits) {
            Tensor rounded = scale(weight(index), weight, Scales.WEIGHTS);
            float factor = 2 / (Scales.WEIGHTS * scales.ofFeatures);
            Float16Product.add(rounded, features, logits, 0, factor);
        }

        @Override
        Tensor round(Tensor target, Tensor numbers, boolean areGradient) {
            return scale(target, numbers, areGradient ? ofFactors : Scales.EXPONENTIALS);
        }

        @Override
        void addToFeatures(int index, Tensor factors, Tensor weight, Tensor products) {
            float factor = 1 / (Scales.EXPONENTIALS * Scales.WEIGHTS);
            Float16Product.add(factors.t(), weight(index), products, 1, factor);
        }

        @Override
        void addToWeight(
                Tensor left, Tensor x, Tensor target, float keep, float factor, boolean isNear) {
            float ofX = pass.isSmooth() ? scales.ofFeatures : scales.ofProducts;
            long rows = left.size(1);
            Tensor scaled = memory.rounded(Place.ROUNDED_SCALED_FEATURES, rows, memory.features());
            scaled.narrow(0, x.size(0), rows - x.size(0)).zero_();
            scale(scaled.narrow(0, 0, x.size(0)), x, ofX);
            Float16Product.add(left, scaled, target, keep, factor * (1 / ofFactors / ofX));
        }
    }

    /**
     * The powers of two that the factors of a pass in float16 are multiplied with, and its sums in
     * float32 divided by. Numbers of float16 have all of their 11 bits from 2^-14 to 2^16, and
     * smaller ones are off by 2^-25 at most. Brought up to 2^15 at most, factors have all bits down
     * to 2^-29 of their bound, and what is smaller is off by 2^-40 of it: a part of 10^12. To
     * multiply with a power of two rounds nothing.
     *
     * <ul>
     *   <li>Exponentials are at most one: the largest logit of a row is subtracted, not that of its
     *       label, which is in no product
     *   <li>the bounds of the features, and of their factors in the gradient, are read from the
     *       device. Those factors have the share of a row in the batch, and the scale of the loss,
     *       in them: no gradient is lost for being small, and the bits are the same with any power
     *       of two as a scale
     *   <li>weights are not looked through before they are used: theirs is a constant
     * </ul>
     */
    static final class Scales {

        /** Of exponentials. */
        static final float EXPONENTIALS = 0x1p15f;

        /** Of weights: the largest is 1,023, and below 10^-6 they are off by 2^-31. */
        static final float WEIGHTS = 0x1p6f;

        private static final int TOP = 14; // the exponent of what is below 2^15

        /**
         * Two of them, taken out at once, leave a float32 what it needs: 2^-90 times a learning
         * rate.
         */
        private static final int MOST = 45;

        private double largest; // of the features
        private float ofFeatures = 1;
        private float ofProducts = 1; // of features times their factors of the softmax
        private float ofGradients = 1; // of the logits, with label smoothing

        private void setFeatures(Tensor features) {
            largest = HostReads.number(bound(features));
            ofFeatures = upTo(largest);
        }

        /**
         * Reads the bounds of the gradient.
         *
         * @param pass the pass, whose factors are set
         */
        void setGradients(HeadPass pass) {
            if (pass.rows == 0) {
                return;
            }
            Tensor factor = bound(pass.column(Place.SOFTMAX_FACTOR));
            if (!pass.isSmooth()) {
                ofProducts = upTo(largest * HostReads.number(factor));
                return;
            }
            factor.add_(bound(pass.column(Place.SMOOTHED_PART)));
            ofGradients = upTo(HostReads.number(factor));
        }

        private static Tensor bound(Tensor numbers) {
            return numbers.abs().max();
        }

        /** Returns the power of two that brings numbers up to a bound to below 2^15. */
        private static float upTo(double bound) {
            int exponent = TOP - Math.getExponent((float) bound);
            return Math.scalb(1f, Math.min(MOST, exponent));
        }
    }
}
