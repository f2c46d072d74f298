package io.djltp.bridge;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A linear layer whose output is computed a chunk of its units at a time. */
final class ChunkedLinear {

    private final ChunkBuffers buffers;
    private final Tensor weight;
    private final Tensor bias;
    private final boolean wide; // whether the weight is in 32 bits

    /**
     * Creates the layer.
     *
     * @param buffers the memory
     * @param weight the weight, [classes, features], no part of a graph
     * @param bias the bias, [classes], or {@code null}
     */
    ChunkedLinear(ChunkBuffers buffers, Tensor weight, Tensor bias) {
        this.buffers = buffers;
        this.weight = weight;
        this.bias = bias;
        wide = weight.scalar_type().intern() == ScalarType.Float;
    }

    Tensor weight() {
        return weight;
    }

    Tensor bias() {
        return bias;
    }

    /** Returns a chunk's rows of the weight: themselves, or a copy in 32 bits. */
    Tensor weight(int index) {
        Tensor own = part(weight, index);
        return wide ? own : buffers.work(2, own.size(0)).copy_(own);
    }

    /** Writes the rows of a chunk back, if they are a copy. */
    void setWeight(int index, Tensor rows) {
        if (!wide) {
            part(weight, index).copy_(rows);
        }
    }

    /**
     * Computes the output of a chunk.
     *
     * @param index the chunk
     * @param place where it goes, [rows, classes of the chunk]
     * @param features the features, [rows, features]
     * @param rows the number of the rows to which the bias is added, from the first
     * @param rowsOfWeight the rows of the weight that belong to the chunk
     * @return the output
     */
    Tensor output(int index, Tensor place, Tensor features, long rows, Tensor rowsOfWeight) {
        torch.mm_out(place, features, rowsOfWeight.t());
        if (bias != null) {
            place.narrow(0, 0, rows).add_(part(bias, index));
        }
        return place;
    }

    /**
     * Computes the output of a chunk, the classes first.
     *
     * @param index the chunk
     * @param place where it goes, [classes of the chunk, rows]
     * @param features the features, [features, rows]
     * @param rows the number of the rows to which the bias is added, from the first
     * @param rowsOfWeight the rows of the weight that belong to the chunk
     */
    void classMajor(int index, Tensor place, Tensor features, long rows, Tensor rowsOfWeight) {
        torch.mm_out(place, rowsOfWeight, features);
        if (bias != null) {
            place.narrow(1, 0, rows).add_(part(bias, index).unsqueeze(1));
        }
    }

    private Tensor part(Tensor parameter, int index) {
        return parameter.narrow(0, buffers.plan().start(index), buffers.plan().length(index));
    }
}
