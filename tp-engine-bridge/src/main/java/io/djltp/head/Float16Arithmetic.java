package io.djltp.head;

import io.djltp.head.RoundedBuffers.Piece;
import io.djltp.torch.Float16Product;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Factors in float16, u = 2^-11, on GPUs. It has 5 bits of exponent, so that all factors are scaled
 * by powers of two, see {@link Float16Scales}; the sums are float32, where the scales are taken
 * out. A logit may be as large as in float32.
 *
 * <p>Beside what {@link RoundedArithmetic} says, a number is off by what it lacks in exponents: a
 * feature by 2^-40 of the batch's largest, an exponential by 2^-40, a weight by 2^-31.
 */
final class Float16Arithmetic extends RoundedArithmetic {

    /** The logit of a label where the largest of all others is looked for. */
    private static final float LOWEST = -1e30f;

    private final Float16Scales scales;
    private Tensor features; // [features, rows]

    Float16Arithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        super(pass, buffers, linear);
        scales = pass.scales;
    }

    /** Prepares the features for all worker threads. */
    static void pack(FusedPass pass, Tensor features) {
        pass.scales.setFeatures(features);
        double factor = LOG2_E * pass.scales.features() / 2; // log2(e) is below 2
        round(packed(pass.buffers), features, (float) factor);
    }

    private static Tensor packed(ChunkBuffers shared) {
        long batch = shared.sums().size(0);
        return shared.rounded()
                .get(
                        Piece.PACKED_FEATURES,
                        shared.features() * shared.plan().rows(),
                        shared.options(),
                        ScalarType.Half)
                .narrow(0, 0, batch * shared.features())
                .view(batch, shared.features());
    }

    @Override
    ScalarType type() {
        return ScalarType.Half;
    }

    @Override
    void begin() {
        super.begin();
        features = packed(pass.buffers).t();
    }

    @Override
    void multiply(int index, Tensor weight, Tensor logits) {
        Tensor rows = views.ofFeatures(index);
        round(rows, weight, Float16Scales.WEIGHTS);
        float factor = 2 / (Float16Scales.WEIGHTS * scales.features());
        Float16Product.add(rows, features, logits, 0, factor);
    }

    /** Without label smoothing, exponentials are of all classes but the label. */
    @Override
    void labelLogits(Tensor places, Tensor ofLabels, Tensor flat) {
        super.labelLogits(places, ofLabels, flat);
        if (!pass.isSmooth()) {
            flat.index_fill_(0, places, new Scalar(LOWEST));
        }
    }

    @Override
    void keep(int index, Tensor exponentials) {
        if (!pass.isSmooth()) {
            round(views.kept(index), exponentials, Float16Scales.EXPONENTIALS);
        }
    }

    /** Rounds what is multiplied in float32: there is no product with a scalar that does. */
    private static Tensor round(Tensor target, Tensor numbers, float scale) {
        return torch.mul_out(target, numbers, torch.scalar_tensor(new Scalar(scale)));
    }

    @Override
    void addProducts(int index, Tensor weight, Tensor products) {
        add(views.transposed(index), index, products);
    }

    @Override
    void addProducts(int index, Tensor factors, Tensor weight, Tensor products) {
        Tensor place = views.scratch(index);
        add(round(place, factors, Float16Scales.EXPONENTIALS).t(), index, products);
    }

    private void add(Tensor factors, int index, Tensor products) {
        float factor = 1 / (Float16Scales.EXPONENTIALS * Float16Scales.WEIGHTS);
        Float16Product.add(factors, views.ofFeatures(index), products, 1, factor);
    }

    @Override
    void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
        Tensor wide = views.logits(index).copy_(exponentials);
        // taken out before, as the sums may be as large as float32 is
        Tensor scaled = factor.mul(new Scalar(1 / Float16Scales.EXPONENTIALS));
        torch.mv_out(target, wide.narrow(1, 0, pass.rows), scaled);
    }

    @Override
    WeightProduct product(int index, Tensor left, Tensor x) {
        Tensor factors = left;
        float ofFactors = Float16Scales.EXPONENTIALS;
        float ofX = scales.products();
        if (pass.isSmooth()) {
            ofFactors = scales.gradients();
            ofX = scales.features();
            factors = gradientPlace(index);
            round(factors.narrow(1, 0, pass.rows), left, ofFactors);
        }
        Tensor probabilities = factors;
        Tensor scaled = round(x, ofX);
        float out = 1 / ofFactors / ofX;
        return (target, keep, factor) ->
                Float16Product.add(probabilities, scaled, target, keep, factor * out);
    }

    /** Returns rounded features, the rows beside the batch zero. */
    private Tensor round(Tensor x, float scale) {
        Tensor place = scaledFeatures(rows, buffers.features());
        place.narrow(0, x.size(0), rows - x.size(0)).zero_();
        round(place.narrow(0, 0, x.size(0)), x, scale);
        return place;
    }
}
