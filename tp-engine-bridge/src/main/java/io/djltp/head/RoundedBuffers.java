package io.djltp.head;

import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The memory of a {@link RoundedArithmetic} beside {@link ChunkBuffers}: what is in 16 bits.
 * Products in bfloat16 take their inner length in pairs, so odd numbers of rows and features are
 * rounded up, with zeros.
 */
final class RoundedBuffers implements AutoCloseable {

    /** A piece of memory. */
    enum Piece {
        /** The features as the factor that logits are products with. */
        PACKED_FEATURES,
        /** The scaled features as the factor that the gradient is a product with. */
        PACKED_SCALED,
        /** A chunk's weights. */
        WEIGHT,
        /** The exponentials of chunks that are kept. */
        KEPT,
        /** Those of a chunk that is not. */
        SCRATCH,
        /** A chunk's product with the weights. */
        PRODUCT
    }

    private final Map<Piece, Tensor> tensors = new ConcurrentHashMap<>();
    private RoundedViews views;

    /** Returns the next even number: of rows or features that products are computed with. */
    static long even(long length) {
        return length + (length & 1);
    }

    /**
     * Returns a piece of memory, made of zeros when it is first used.
     *
     * @param piece the piece
     * @param size the most numbers in it, the same in all calls
     * @param like options with the device
     * @param type the type, the same in all calls
     * @return [size]
     */
    Tensor get(Piece piece, long size, TensorOptions like, ScalarType type) {
        return tensors.computeIfAbsent(
                piece,
                key -> {
                    TensorOptions options = like.dtype(new ScalarTypeOptional(type));
                    return torch.zeros(new long[] {size}, options).retainReference();
                });
    }

    /**
     * Returns the places of the chunks for the present batch.
     *
     * @param buffers the memory beside this one, of the same thread
     * @param smooth whether labels are smoothed
     * @param type the type, the same in all calls
     */
    RoundedViews views(ChunkBuffers buffers, boolean smooth, ScalarType type) {
        if (views == null || !views.fits(buffers, smooth)) {
            freeViews();
            views = new RoundedViews(buffers, smooth, type);
        }
        return views;
    }

    private void freeViews() {
        if (views != null) {
            views.close();
            views = null;
        }
    }

    int count() {
        return tensors.size();
    }

    /** Frees the memory. */
    @Override
    public void close() {
        freeViews();
        tensors.values().forEach(Tensor::close);
        tensors.clear();
    }
}
