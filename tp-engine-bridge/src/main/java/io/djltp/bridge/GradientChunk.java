package io.djltp.bridge;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;

/**
 * The gradient of the weights of some classes as the two factors that it is a product of, and as
 * the few rows in which a label lies. It is only computed into what it is added to.
 */
final class GradientChunk {

    final long start; // the first class of the chunk, of all classes of the rank
    final long length;
    final Tensor weight; // [length, features], float32: updated in place

    private final ChunkBuffers buffers;
    private final Tensor probabilities; // [length, rows]
    private final Tensor features; // [rows, features]
    private final Tensor labels; // [labels], int64, from the start of the chunk; null if none
    private final Tensor labelRows; // [labels, features]
    private final float labelScale;

    GradientChunk(
            ChunkBuffers buffers,
            int index,
            Tensor weight,
            Tensor probabilities,
            Tensor features,
            Tensor labels,
            Tensor labelRows,
            float labelScale) {
        start = buffers.plan().start(index);
        length = buffers.plan().length(index);
        this.buffers = buffers;
        this.weight = weight;
        this.probabilities = probabilities;
        this.features = features;
        this.labels = labels;
        this.labelRows = labelRows;
        this.labelScale = labelScale;
    }

    /** Computes {@code target = keep * target + factor * gradient}. */
    void addTo(Tensor target, float keep, float factor) {
        target.addmm_(probabilities, features, new Scalar(keep), new Scalar(factor));
        if (labels != null) {
            target.index_add_(0, labels, labelRows, new Scalar(factor * labelScale));
        }
    }

    /** Returns the gradient as {@link WeightUpdate}s of DJL see it, in memory that is reused. */
    Tensor whole(WeightUpdate.Settings settings) {
        Tensor gradient = buffers.work(0, length);
        addTo(gradient, 0, settings.rescale());
        if (settings.clip() > 0) {
            gradient.clamp_max_(new Scalar(settings.clip())); // from above only, as DJL does
        }
        return gradient;
    }

    /** Returns memory of the size of the gradient that is free until the next chunk. */
    Tensor spare() {
        return buffers.work(1, length);
    }
}
