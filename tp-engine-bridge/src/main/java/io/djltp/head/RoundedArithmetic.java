package io.djltp.head;

import io.djltp.head.RoundedBuffers.Piece;
import io.djltp.torch.BFloat16Product;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * Products of factors in bfloat16, with sums in float32. A chunk's weights are rounded in the cache
 * where its logits are computed. With u = 2^-8, what rounding a number to bfloat16 changes it by at
 * most, relative to it:
 *
 * <ul>
 *   <li>a logit is off by at most {@code (2u + u^2) sum_j |x_j w_j|}: both factors are rounded.
 *       Labels' logits are not: they are computed in float64
 *   <li>the normaliser, sums of float32, is off by as much as its logits are: by a factor of {@code
 *       exp(d)} at most, where d bounds the errors of the row's logits
 *   <li>in the gradient of the features, \(E^T W\), the exponentials and the weights are rounded,
 *       and the sum of a chunk once more: {@code 3u sum_k p_k |w_k|} and the error of p
 *   <li>in the gradient of the weights, \(E X\), the exponentials and the features times their
 *       factors: {@code 2u sum_i p_ik |x_i|} and the error of p
 *   <li>labels are in none of these products: their part of both gradients, {@code p - 1}, is made
 *       from sums in float64, and added in float32
 * </ul>
 *
 * <p>Exponentials are powers of two, of logits whose features were multiplied with log2(e):
 * libtorch computes them in a third of the time of {@code exp}.
 */
final class RoundedArithmetic extends ChunkArithmetic {

    private static final double LOG2_E = 1 / Math.log(2);

    private final RoundedBuffers rounded;
    private final long rows; // even, as columns
    private final long columns; // those of the features, even
    private RoundedViews views;
    private Tensor features; // packed
    private Tensor packed; // scaled features
    private float packedFactor; // theirs

    RoundedArithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        super(pass, buffers, linear);
        rounded = buffers.rounded();
        rows = buffers.sums().size(0);
        columns = RoundedBuffers.even(buffers.features());
    }

    /** Prepares the features for all worker threads. */
    static void pack(ChunkBuffers shared, Tensor features) {
        long columns = RoundedBuffers.even(shared.features());
        Tensor factor = torch.zeros(new long[] {columns, features.size(0)}, shared.options());
        Tensor x = factor.narrow(0, 0, features.size(1));
        torch.mul_out(x, features.t(), new Scalar(LOG2_E));
        packedFeatures(shared).copy_(BFloat16Product.pack(factor));
    }

    private static Tensor packedFeatures(ChunkBuffers shared) {
        long columns = RoundedBuffers.even(shared.features());
        long batch = shared.sums().size(0);
        return shared.rounded()
                .get(Piece.PACKED_FEATURES, columns * shared.plan().rows(), shared.options())
                .narrow(0, 0, columns * batch)
                .view(columns / 2, batch, 2);
    }

    @Override
    void begin() {
        views = rounded.views(buffers, pass.isSmooth());
        features = packedFeatures(pass.buffers);
    }

    @Override
    void end() {
        BFloat16Product.release();
        free();
    }

    @Override
    Tensor logits(int index, Tensor weight) {
        Tensor logits = pass.isSmooth() ? buffers.logits(index) : views.logits(index);
        views.ofFeatures(index).copy_(weight);
        BFloat16Product.multiply(views.weight(index), features, logits, false);
        if (linear.bias() != null) {
            ChunkPlan plan = buffers.plan();
            Tensor bias = linear.bias().narrow(0, plan.start(index), plan.length(index));
            logits.narrow(1, 0, pass.rows).add_(bias.unsqueeze(1), new Scalar((float) LOG2_E));
        }
        return logits;
    }

    /** With label smoothing they are in the sums: as exact as where they are by themselves. */
    @Override
    void labelLogits(Tensor places, Tensor ofLabels, Tensor flat) {
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
    void restoreLabelLogits(Tensor places, Tensor ofLabels, Tensor flat) {
        labelLogits(places, ofLabels, flat);
    }

    @Override
    void exp(Tensor logits) {
        logits.exp2_();
    }

    @Override
    Tensor sum(int index, Tensor exponentials) {
        Tensor sum = views.sum(index);
        return torch.sum_out(sum, exponentials, new long[] {0}, false, floats());
    }

    @Override
    void keep(int index, Tensor exponentials) {
        if (!pass.isSmooth()) {
            views.kept(index).copy_(exponentials);
        }
    }

    /** With label smoothing float32: what is subtracted from them is nearly as large. */
    @Override
    Tensor kept(int index) {
        return pass.isSmooth() ? buffers.logits(index) : views.kept(index);
    }

    @Override
    void addProducts(int index, Tensor weight, Tensor products) {
        add(views.transposed(index), index, products);
    }

    @Override
    void addProducts(int index, Tensor factors, Tensor weight, Tensor products) {
        add(views.scratch(index).copy_(factors).t(), index, products);
    }

    /** The sum over the chunk is rounded to bfloat16 once, those over chunks are float32. */
    private void add(Tensor factors, int index, Tensor products) {
        Tensor product = torch.mm_out(views.product(), factors, views.weight(index));
        products.add_(
                columns == buffers.features() ? product : product.narrow(1, 0, buffers.features()));
    }

    @Override
    void addUp(Tensor target, int index, Tensor exponentials, Tensor factor) {
        Tensor wide = views.logits(index).copy_(exponentials);
        torch.mv_out(target, wide.narrow(1, 0, pass.rows), factor);
    }

    @Override
    WeightProduct product(int index, Tensor left, Tensor x) {
        Tensor factors = left;
        if (pass.isSmooth()) {
            factors = views.scratch(index);
            factors.narrow(1, 0, pass.rows).copy_(left);
            factors.narrow(1, pass.rows, rows - pass.rows).zero_();
        }
        Tensor probabilities = factors;
        return (target, keep, factor) -> {
            if (keep != 0 && keep != 1) {
                target.mul_(new Scalar(keep));
            }
            BFloat16Product.multiply(probabilities, packed(x, factor), target, keep != 0);
        };
    }

    /** Returns features times a factor as the right factor, the same for all chunks of a pass. */
    private Tensor packed(Tensor x, float factor) {
        if (packed != null && packedFactor == factor && !pass.isGuarded()) {
            return packed;
        }
        long length = buffers.features();
        Tensor place =
                rounded.get(Piece.PACKED_SCALED, buffers.plan().rows() * length, buffers.options())
                        .narrow(0, 0, rows * length)
                        .view(rows / 2, length, 2);
        Tensor scaled = torch.zeros(new long[] {rows, length}, buffers.options());
        torch.mul_out(scaled.narrow(0, 0, x.size(0)), x, new Scalar(factor));
        place.copy_(BFloat16Product.pack(scaled));
        if (!pass.isGuarded()) {
            free();
            packed = place.retainReference();
            packedFactor = factor;
        }
        return place;
    }

    private void free() {
        if (packed != null) {
            packed.close();
            packed = null;
        }
    }
}
