package io.djltp.head;

import io.djltp.head.RoundedBuffers.Piece;
import io.djltp.torch.BFloat16Product;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * Factors in bfloat16, u = 2^-8, on processors, where a chunk's weights are rounded in the cache.
 * In the gradient of the features the sum of a chunk is rounded once more: 3u where {@link
 * RoundedArithmetic} says 2u.
 */
final class BFloat16Arithmetic extends RoundedArithmetic {

    private Tensor features; // packed
    private Tensor packed; // scaled features
    private float packedFactor; // theirs

    BFloat16Arithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        super(pass, buffers, linear);
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
                .get(
                        Piece.PACKED_FEATURES,
                        columns * shared.plan().rows(),
                        shared.options(),
                        ScalarType.BFloat16)
                .narrow(0, 0, columns * batch)
                .view(columns / 2, batch, 2);
    }

    @Override
    ScalarType type() {
        return ScalarType.BFloat16;
    }

    @Override
    void begin() {
        super.begin();
        features = packedFeatures(pass.buffers);
    }

    @Override
    void end() {
        BFloat16Product.release();
        free();
    }

    @Override
    void multiply(int index, Tensor weight, Tensor logits) {
        views.ofFeatures(index).copy_(weight);
        BFloat16Product.multiply(views.weight(index), features, logits, false);
    }

    @Override
    void keep(int index, Tensor exponentials) {
        if (!pass.isSmooth()) {
            views.kept(index).copy_(exponentials);
        }
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
            factors = gradientPlace(index);
            factors.narrow(1, 0, pass.rows).copy_(left);
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
        Tensor place = scaledFeatures(rows / 2, length, 2);
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
