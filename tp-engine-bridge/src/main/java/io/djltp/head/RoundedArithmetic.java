package io.djltp.head;

import io.djltp.head.RoundedBuffers.Piece;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

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

    static final double LOG2_E = 1 / Math.log(2);

    final RoundedBuffers rounded;
    final long rows; // even, as columns
    final long columns; // those of the features, even
    RoundedViews views;

    RoundedArithmetic(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        super(pass, buffers, linear);
        rounded = buffers.rounded();
        rows = buffers.sums().size(0);
        columns = RoundedBuffers.even(buffers.features());
    }

    /** Prepares the features, [rows, features], for all worker threads of a pass. */
    static void pack(FusedPass pass, Tensor features) {
        if (pass.isIn(Precision.FLOAT16)) {
            Float16Arithmetic.pack(pass, features);
        } else {
            BFloat16Arithmetic.pack(pass.buffers, features);
        }
    }

    /** Returns the type of the factors. */
    abstract ScalarType type();

    @Override
    void begin() {
        views = rounded.views(buffers, pass.isSmooth(), type());
    }

    @Override
    Tensor logits(int index, Tensor weight) {
        Tensor logits = pass.isSmooth() ? buffers.logits(index) : views.logits(index);
        multiply(index, weight, logits);
        if (linear.bias() != null) {
            ChunkPlan plan = buffers.plan();
            Tensor bias = linear.bias().narrow(0, plan.start(index), plan.length(index));
            logits.narrow(1, 0, pass.rows).add_(bias.unsqueeze(1), new Scalar((float) LOG2_E));
        }
        return logits;
    }

    /** Computes the logits of a chunk, without their bias. */
    abstract void multiply(int index, Tensor weight, Tensor logits);

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

    /** With label smoothing float32: what is subtracted from them is nearly as large. */
    @Override
    Tensor kept(int index) {
        return pass.isSmooth() ? buffers.logits(index) : views.kept(index);
    }

    /** Returns a place for the rounded gradient of a chunk's logits, zero beside the batch. */
    Tensor gradientPlace(int index) {
        Tensor place = views.scratch(index);
        place.narrow(1, pass.rows, rows - pass.rows).zero_();
        return place;
    }

    /** Returns a place for rounded features, scaled for the gradient of the weights. */
    Tensor scaledFeatures(long... shape) {
        long length = buffers.features();
        return rounded.get(
                        Piece.PACKED_SCALED,
                        buffers.plan().rows() * length,
                        buffers.options(),
                        type())
                .narrow(0, 0, rows * length)
                .view(shape);
    }
}
