package io.djltp.head;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** The sum of the exponentials of logits that come a chunk of classes at a time, for each row. */
final class ChunkLogSum {

    private final Tensor largest; // [rows], float32: what the exponentials are above
    private final Tensor sum; // [rows], float64

    ChunkLogSum(LogitChunks chunks) {
        long[] shape = {chunks.rows};
        largest = torch.full(shape, new Scalar(-Float.MAX_VALUE), chunks.buffers.options());
        sum = torch.zeros(shape, chunks.buffers.wide());
    }

    /**
     * Adds a chunk.
     *
     * @param logits the logits, which are used up, [rows, classes of the chunk]
     * @param top the largest of each row, [rows]
     */
    void add(Tensor logits, Tensor top) {
        Tensor now = torch.maximum(largest, top);
        logits.sub_(now.unsqueeze(1)).exp_();
        sum.mul_(largest.sub(now).exp_());
        sum.add_(logits.sum(new long[] {1}, false, new ScalarTypeOptional()));
        largest.copy_(now);
    }

    /** Returns the largest logit of each row, float32 [rows]. */
    Tensor largest() {
        return largest;
    }

    /** Returns the sum of the exponentials above a logit that is not smaller, float64 [rows]. */
    Tensor sumAbove(Tensor larger) {
        return largest.to(ScalarType.Double).sub_(larger).exp_().mul_(sum);
    }
}
