package io.djltp.head;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;

import java.util.ArrayList;
import java.util.List;

/**
 * The places of a worker thread's chunks in its memory, made once for all batches of a size: to
 * make a view takes longer than some operations on a chunk.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkViews implements AutoCloseable {

    private final long rows;
    private final ChunkPlan plan;
    private final List<Tensor> logits = new ArrayList<>();
    private final List<Tensor> flat = new ArrayList<>();
    private final List<Tensor> transposed = new ArrayList<>();
    private final List<Tensor> sums = new ArrayList<>();
    private final List<Tensor> ones = new ArrayList<>();

    /**
     * Makes the views.
     *
     * @param buffers the memory, whose rows are set
     * @param rows the rows of the batch
     * @param plan the chunks of the batch
     */
    ChunkViews(ChunkBuffers buffers, long rows, ChunkPlan plan) {
        this.rows = rows;
        this.plan = plan;
        try (PointerScope scope = new PointerScope()) {
            Tensor all = buffers.ones();
            all.fill_(new Scalar(1));
            for (int i = 0; i < plan.count(); i++) {
                Tensor place = buffers.logits(i);
                logits.add(place.retainReference());
                flat.add(place.view(-1).retainReference());
                transposed.add(place.t().retainReference());
                sums.add(buffers.chunkSums().select(0, i).retainReference());
                ones.add(all.narrow(0, 0, place.size(0)).retainReference());
            }
        }
    }

    boolean fits(long batchRows, ChunkPlan batchPlan) {
        return rows == batchRows && plan.equals(batchPlan);
    }

    /** Returns the place of a chunk's logits, [classes, rows]. */
    Tensor logits(int index) {
        return logits.get(index);
    }

    /** Returns the same as one vector. */
    Tensor flat(int index) {
        return flat.get(index);
    }

    /** Returns the same, [rows, classes]. */
    Tensor transposed(int index) {
        return transposed.get(index);
    }

    /** Returns where the sums over a chunk's classes go, [rows]. */
    Tensor sum(int index) {
        return sums.get(index);
    }

    /** Returns a one for each class of a chunk. */
    Tensor ones(int index) {
        return ones.get(index);
    }

    /** Frees the views. */
    @Override
    public void close() {
        for (List<Tensor> views : List.of(logits, flat, transposed, sums, ones)) {
            views.forEach(Tensor::close);
        }
    }
}
