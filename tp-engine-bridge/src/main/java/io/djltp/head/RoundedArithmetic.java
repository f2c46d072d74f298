package io.djltp.head;

import io.djltp.head.ChunkMemory.Rounded;
import io.djltp.internal.torch.Brgemm;
import io.djltp.internal.torch.Float16Product;
import io.djltp.internal.torch.HostReads;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Products of factors in 16 bits, with sums in float32. A chunk's weights are rounded where its
 * logits are computed. With the unit roundoff u, what rounding a number changes it by at most,
 * relative to it:
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
 *
 * <p>Exponentials are powers of two, of logits whose features were multiplied with log2(e):
 * libtorch computes them in a third of the time of {@code exp}.
 */
abstract class RoundedArithmetic extends ChunkArithmetic {

    private static final double LOG2_E = 1 / Math.log(2);

    final long rows; // even, as columns
    final long columns; // those of the features, even

    RoundedArithmetic(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
        super(pass, memory, linear);
        rows = memory.batchRows();
        columns = ChunkMemory.even(memory.features());
    }

    /** Prepares the features, [rows, features], for all worker threads of a pass. */
    static void pack(HeadPass pass, Tensor features) {
        if (pass.isIn(Precision.FLOAT16)) {
            Float16.packFeatures(pass, features);
        } else {
            BFloat16.packFeatures(pass.memory, features);
        }
    }

    /** Computes the logits of a chunk, without their bias. */
    abstract void multiply(int index, Tensor weight, Tensor logits);

    /** Rounds exponentials, or what is at most as large, and returns the target. */
    abstract Tensor round(Tensor target, Tensor exponentials);

    /** Adds the product of rounded factors and the weights of a chunk to products. */
    abstract void add(Tensor factors, int index, Tensor products);

    @Override
    Tensor logits(int index, Tensor weight) {
        Tensor logits = pass.isSmooth() ? memory.logits(index) : memory.spareLogits(index);
        multiply(index, weight, logits);
        if (linear.bias() != null) {
            ChunkPlan plan = memory.plan();
            Tensor bias = linear.bias().narrow(0, plan.start(index), plan.length(index));
            logits.narrow(1, 0, pass.rows).add_(bias.unsqueeze(1), new Scalar((float) LOG2_E));
        }
        return logits;
    }

    @Override
    Tensor flat(int index, Tensor logits) {
        return logits.view(-1);
    }

    /** With label smoothing they are in the sums: as exact as where they are by themselves. */
    @Override
    void labelLogits(Tensor places, Tensor ofLabels, Tensor flat, boolean again) {
        if (pass.isSmooth()) {
            flat.index_copy_(0, places, ofLabels.mul(new Scalar(LOG2_E)));
        }
    }

    @Override
    void largest(Tensor target, Tensor logits) {
        super.largest(target, logits);
        target.mul_(new Scalar(1 / LOG2_E));
    }

    @Override
    void subtract(Tensor logits, Tensor offset) {
        logits.sub_(offset, new Scalar((float) LOG2_E));
    }

    @Override
    void exp(Tensor logits) {
        logits.exp2_();
    }

    @Override
    Tensor sum(int index, Tensor exponentials) {
        Tensor sum = memory.chunkSum(index);
        return torch.sum_out(sum, exponentials, new long[] {0}, false, floats());
    }

    @Override
    void keep(int index, Tensor exponentials) {
        if (!pass.isSmooth()) {
            round(memory.roundedKept(index), exponentials);
        }
    }

    /** With label smoothing float32: what is subtracted from them is nearly as large. */
    @Override
    Tensor kept(int index) {
        return pass.isSmooth() ? memory.logits(index) : memory.roundedKept(index);
    }

    @Override
    void addProducts(int index, Tensor weight, Tensor products) {
        add(memory.transposedKept(index), index, products);
    }

    @Override
    void addProducts(int index, Tensor factors, Tensor weight, Tensor products) {
        add(round(memory.roundedScratch(index), factors).t(), index, products);
    }

    @Override
    void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
        Tensor wide = memory.spareLogits(index).copy_(exponentials);
        torch.mv_out(target, wide.narrow(1, 0, pass.rows), factor);
    }

    /** Returns a place for the rounded gradient of a chunk's logits, zero beside the batch. */
    Tensor gradientPlace(int index) {
        Tensor place = memory.roundedScratch(index);
        place.narrow(1, pass.rows, rows - pass.rows).zero_();
        return place;
    }

    /**
     * Factors in bfloat16, u = 2^-8, on processors, where a chunk's weights are rounded in the
     * cache. In the gradient of the features the sum of a chunk is rounded once more: 3u where
     * {@link RoundedArithmetic} says 2u.
     */
    static final class BFloat16 extends RoundedArithmetic {

        private Tensor features; // packed
        private float packedFactor = Float.NaN; // of the scaled features that are packed

        BFloat16(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
            super(pass, memory, linear);
        }

        static void packFeatures(ChunkMemory shared, Tensor features) {
            long columns = ChunkMemory.even(shared.features());
            Tensor factor = torch.zeros(new long[] {columns, features.size(0)}, shared.options());
            Tensor x = factor.narrow(0, 0, features.size(1));
            torch.mul_out(x, features.t(), new Scalar(LOG2_E));
            packedFeatures(shared).copy_(Brgemm.pack(factor));
        }

        private static Tensor packedFeatures(ChunkMemory shared) {
            long columns = ChunkMemory.even(shared.features());
            return shared.rounded(Rounded.FEATURES, columns / 2, shared.batchRows(), 2);
        }

        @Override
        void begin() {
            features = packedFeatures(pass.memory);
        }

        @Override
        void end() {
            Brgemm.release();
        }

        @Override
        void multiply(int index, Tensor weight, Tensor logits) {
            memory.roundedWeightOfFeatures(index).copy_(weight);
            Brgemm.multiplyPacked(memory.roundedWeight(index), features, logits, false);
        }

        @Override
        Tensor round(Tensor target, Tensor exponentials) {
            return target.copy_(exponentials);
        }

        /** The sum over the chunk is rounded to bfloat16 once, those over chunks are float32. */
        @Override
        void add(Tensor factors, int index, Tensor products) {
            Tensor place = memory.rounded(Rounded.PRODUCT, rows, columns);
            Tensor product = torch.mm_out(place, factors, memory.roundedWeight(index));
            long length = memory.features();
            products.add_(columns == length ? product : product.narrow(1, 0, length));
        }

        @Override
        WeightProduct product(int index, Tensor left, Tensor x) {
            Tensor factors = pass.isSmooth() ? gradientPlace(index) : left;
            if (pass.isSmooth()) {
                factors.narrow(1, 0, pass.rows).copy_(left);
            }
            return (target, keep, factor) -> {
                if (keep != 0 && keep != 1) {
                    target.mul_(new Scalar(keep));
                }
                Brgemm.multiplyPacked(factors, packed(x, factor), target, keep != 0);
            };
        }

        /** Returns features times a factor as the right factor, the same for a pass's chunks. */
        private Tensor packed(Tensor x, float factor) {
            long length = memory.features();
            Tensor place = memory.rounded(Rounded.SCALED_FEATURES, rows / 2, length, 2);
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
     * <p>Beside what {@link RoundedArithmetic} says, a number is off by what it lacks in exponents:
     * a feature by 2^-40 of the batch's largest, an exponential by 2^-40, a weight by 2^-31.
     */
    static final class Float16 extends RoundedArithmetic {

        /** The logit of a label where the largest of all others is looked for. */
        private static final float LOWEST = -1e30f;

        private final Scales scales;
        private Tensor features; // [features, rows]

        Float16(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
            super(pass, memory, linear);
            scales = pass.scales;
        }

        static void packFeatures(HeadPass pass, Tensor features) {
            pass.scales.setFeatures(features);
            double factor = LOG2_E * pass.scales.ofFeatures / 2; // log2(e) is below 2
            scale(packed(pass.memory), features, (float) factor);
        }

        private static Tensor packed(ChunkMemory shared) {
            return shared.rounded(Rounded.FEATURES, shared.batchRows(), shared.features());
        }

        @Override
        void begin() {
            features = packed(pass.memory).t();
        }

        @Override
        void multiply(int index, Tensor weight, Tensor logits) {
            Tensor rounded = scale(memory.roundedWeightOfFeatures(index), weight, Scales.WEIGHTS);
            float factor = 2 / (Scales.WEIGHTS * scales.ofFeatures);
            Float16Product.add(rounded, features, logits, 0, factor);
        }

        /** Without label smoothing, exponentials are of all classes but the label. */
        @Override
        void labelLogits(Tensor places, Tensor ofLabels, Tensor flat, boolean again) {
            super.labelLogits(places, ofLabels, flat, again);
            if (!pass.isSmooth()) {
                flat.index_fill_(0, places, new Scalar(LOWEST));
            }
        }

        @Override
        Tensor round(Tensor target, Tensor exponentials) {
            return scale(target, exponentials, Scales.EXPONENTIALS);
        }

        /** Rounds what is multiplied in float32: there is no product with a scalar that does. */
        private static Tensor scale(Tensor target, Tensor numbers, float scale) {
            return torch.mul_out(target, numbers, torch.scalar_tensor(new Scalar(scale)));
        }

        @Override
        void add(Tensor factors, int index, Tensor products) {
            float factor = 1 / (Scales.EXPONENTIALS * Scales.WEIGHTS);
            Float16Product.add(factors, memory.roundedWeightOfFeatures(index), products, 1, factor);
        }

        /** Takes the scale out before, as the sums may be as large as float32 is. */
        @Override
        void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
            super.addUp(
                    target, index, exponentials, factor.mul(new Scalar(1 / Scales.EXPONENTIALS)));
        }

        @Override
        WeightProduct product(int index, Tensor left, Tensor x) {
            boolean smooth = pass.isSmooth();
            float ofFactors = smooth ? scales.ofGradients : Scales.EXPONENTIALS;
            float ofX = smooth ? scales.ofFeatures : scales.ofProducts;
            Tensor factors = smooth ? gradientPlace(index) : left;
            if (smooth) {
                scale(factors.narrow(1, 0, pass.rows), left, ofFactors);
            }
            Tensor scaled = memory.rounded(Rounded.SCALED_FEATURES, rows, memory.features());
            scaled.narrow(0, x.size(0), rows - x.size(0)).zero_();
            scale(scaled.narrow(0, 0, x.size(0)), x, ofX);
            float out = 1 / ofFactors / ofX;
            return (target, keep, factor) ->
                    Float16Product.add(factors, scaled, target, keep, factor * out);
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

        /** Reads the bound of features. */
        void setFeatures(Tensor features) {
            largest = HostReads.number(bound(features));
            ofFeatures = upTo(largest);
        }

        /**
         * Reads the bounds of the gradient.
         *
         * @param pass the pass, whose factors are set
         * @param scale the factor of the loss in the backward pass
         */
        void setGradients(HeadPass pass, float scale) {
            if (pass.rows == 0) {
                return;
            }
            if (!pass.isSmooth()) {
                ofProducts = upTo(largest * HostReads.number(bound(pass.softmaxFactor())));
                return;
            }
            Tensor sum = bound(pass.softmaxFactor()).add_(bound(pass.smoothedPart()));
            if (pass.labels.rows.length > 0) {
                Tensor parts = pass.labelParts().narrow(0, 0, pass.labels.rows.length);
                sum.add_(bound(parts), new Scalar(Math.abs(scale)));
            }
            ofGradients = upTo(HostReads.number(sum));
        }

        private static Tensor bound(Tensor numbers) {
            return numbers.abs().max();
        }

        /** Returns the power of two that brings numbers up to a bound to below 2^15. */
        static float upTo(double bound) {
            int exponent = TOP - Math.getExponent((float) bound);
            return Math.scalb(1f, Math.min(MOST, exponent));
        }
    }
}
