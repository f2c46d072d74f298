package io.djltp.head;

import io.djltp.torch.ShortSumProduct;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/** Everything in float32, and what is kept too. */
final class WideArithmetic extends ChunkArithmetic {

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
