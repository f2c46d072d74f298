package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.torch.Float16Product;
import io.djltp.torch.Precision;
import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** The layer of a {@link FusedCrossEntropy} as its passes see it, with its margin. */
final class HeadLayer {

    private final FusedMemory memory;
    private final Margin margin; // or null

    HeadLayer(FusedMemory memory, Margin margin) {
        this.memory = memory;
        this.margin = margin;
    }

    /** Returns the layer, reduced to a sample of the classes unless that is {@code null}. */
    ChunkedLinear linear(NDArray weight, NDArray bias, long[] sample) {
        return new ChunkedLinear(
                memory.shared(),
                TensorView.of(weight).tensor().detach(),
                bias == null ? null : TensorView.of(bias).tensor().detach(),
                sample == null ? null : memory.shared().index(sample),
                margin != null);
    }

    /**
     * Checks that the precision can be had.
     *
     * @param precision the precision
     * @param weight the weight
     */
    void check(Precision precision, NDArray weight) {
        if (precision == Precision.FLOAT32) {
            return;
        }
        if (precision == Precision.BFLOAT16 && weight.getDevice().isGpu()) {
            throw new IllegalArgumentException(
                    "A fused head computes in bfloat16 on processors only, and this rank's is on "
                            + weight.getDevice()
                            + ": use float16 or float32 there");
        }
        if (TensorView.of(weight).tensor().scalar_type().intern() != ScalarType.Float) {
            throw new IllegalArgumentException(
                    "A fused head that computes in "
                            + precision
                            + " has its weight in float32, and this weight is not: initialize the"
                            + " network in float32, or leave optPrecision out");
        }
        precision.check(weight.getDevice());
        if (precision == Precision.FLOAT16 && !Float16Product.isThere(weight.getDevice().isGpu())) {
            throw new IllegalArgumentException(
                    "A fused head computes in float16 by cublasGemmEx on the stream of libtorch,"
                            + " which is not found in the libtorch here for "
                            + weight.getDevice()
                            + ": use float32");
        }
    }

    /** Lets the margin take the place of the logits of labels, if there is one. */
    MarginLabels margin(ShardLabels rows, ChunkedLinear linear) {
        if (margin == null) {
            return null;
        }
        MarginLabels labels = new MarginLabels(margin, memory.shared(), rows);
        linear.setMargin(labels);
        return labels;
    }

    /** Returns features, or logits, as rows, [x1 * ... * xn, columns], no part of a graph. */
    static Tensor rows(NDArray features) {
        Tensor tensor = TensorView.of(features).tensor().detach();
        // not -1: of features of length 0, any number of rows would do
        return tensor.reshape(leading(features).size(), tensor.size(-1));
    }

    /** Returns the shape without the last axis, [x1, ..., xn]. */
    static Shape leading(NDArray rows) {
        return rows.getShape().slice(0, rows.getShape().dimension() - 1);
    }
}
