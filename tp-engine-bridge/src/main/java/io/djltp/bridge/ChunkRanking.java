package io.djltp.bridge;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** Where labels come in the order of logits that exist a chunk of classes at a time. */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkRanking {

    private final ChunkBuffers buffers;
    private final ChunkedLinear linear;
    private final LabelRows labels;
    private final Tensor features; // [rows, features], float32

    ChunkRanking(ChunkBuffers buffers, ChunkedLinear linear, LabelRows labels, Tensor features) {
        this.buffers = buffers;
        this.linear = linear;
        this.labels = labels;
        this.features = features;
        buffers.setRows(features.size(0));
    }

    /**
     * Returns the logit of the label of each row that is a class of this rank, and zero for the
     * others, [rows]. It is computed as those that it is compared with, to the last bit.
     */
    Tensor labelLogits() {
        Tensor found = torch.zeros(new long[] {features.size(0)}, buffers.options());
        for (int i = 0; i < buffers.plan().count(); i++) {
            long start = buffers.plan().start(i);
            int from = labels.from(start);
            int to = labels.from(start + buffers.plan().length(i));
            if (from == to) {
                continue;
            }
            try (PointerScope scope = new PointerScope()) {
                Tensor rows = buffers.index(labels.rows).narrow(0, from, to - from);
                Tensor classes = buffers.index(labels.classes).narrow(0, from, to - from);
                Tensor own = logits(i).index_select(0, rows);
                Tensor columns = classes.sub_(new Scalar(start)).unsqueeze(1);
                found.index_add_(0, rows, own.gather(1, columns).squeeze(1));
            }
        }
        return found;
    }

    /**
     * Returns how many classes of this rank come before the label of each row, int64 [rows].
     *
     * @param values the logits of the labels, [rows]
     * @param ids the labels, counted from the first class of the rank, int64 [rows]
     */
    Tensor countBefore(Tensor values, Tensor ids) {
        Tensor before = torch.zeros_like(ids);
        for (int i = 0; i < buffers.plan().count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                Tensor local = ids.sub(new Scalar(buffers.plan().start(i)));
                before.add_(RowOps.countBefore(logits(i), values, local));
            }
        }
        return before;
    }

    private Tensor logits(int index) {
        Tensor place = buffers.scratch(index);
        Tensor weight = linear.weight(index);
        return linear.output(index, place, features, features.size(0), weight);
    }

    /** Returns features as a ranking needs them. */
    static Tensor wide(Tensor features) {
        return features.to(ScalarType.Float).contiguous();
    }
}
