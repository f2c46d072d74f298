package io.djltp.head;

import io.djltp.head.RoundedBuffers.Piece;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.ArrayList;
import java.util.List;

/**
 * The places of a worker thread's chunks in the memory of a {@link RoundedArithmetic}, made once
 * for all batches of a size: with them made anew, each chunk had a dozen more small native objects,
 * which the threads allocate and free from the same lists.
 */
@SuppressWarnings("try") // a scope is used by being open
final class RoundedViews implements AutoCloseable {

    private final ChunkBuffers buffers;
    private final long rows; // even
    private final long columns; // those of the features, even
    private final ChunkPlan plan;
    private final boolean smooth;
    private final ScalarType type;
    private final List<Tensor> all = new ArrayList<>();

    // of the chunks that have the full length, and of the last one
    private final Tensor[] weights = new Tensor[2];
    private final Tensor[] ofFeatures = new Tensor[2];
    private final Tensor[] logits = new Tensor[2];
    private final Tensor[] scratch = new Tensor[2];

    // of each chunk
    private final List<Tensor> kept = new ArrayList<>();
    private final List<Tensor> transposed = new ArrayList<>();
    private final List<Tensor> sums = new ArrayList<>();
    private final Tensor product;

    /**
     * Makes the views.
     *
     * @param buffers the memory, whose rows are set
     * @param smooth whether labels are smoothed, so that nothing rounded is kept
     * @param type what is rounded to
     */
    RoundedViews(ChunkBuffers buffers, boolean smooth, ScalarType type) {
        this.type = type;
        this.buffers = buffers;
        this.smooth = smooth;
        plan = buffers.plan();
        rows = buffers.sums().size(0);
        columns = RoundedBuffers.even(buffers.features());
        try (PointerScope scope = new PointerScope()) {
            for (int i = 0; i < plan.count(); i++) {
                if (i == 0 || i == plan.count() - 1) {
                    addLength(i);
                }
                if (!smooth) {
                    addChunk(i);
                }
            }
            product =
                    type == ScalarType.BFloat16
                            ? view(Piece.PRODUCT, plan.rows() * columns, 0, rows, columns)
                            : null;
        }
    }

    private void addLength(int index) {
        long length = plan.length(index);
        int which = which(index);
        weights[which] = view(Piece.WEIGHT, plan.chunk() * columns, 0, length, columns);
        ofFeatures[which] = add(weights[which].narrow(1, 0, buffers.features()));
        logits[which] = add(buffers.spareLogits(index));
        if (smooth || plan.kept() < plan.count()) {
            scratch[which] = view(Piece.SCRATCH, plan.rows() * plan.chunk(), 0, length, rows);
        }
    }

    private void addChunk(int index) {
        long size = plan.rows() * plan.chunk();
        Tensor place =
                buffers.isKept(index)
                        ? view(
                                Piece.KEPT,
                                buffers.keptPlaces() * size,
                                index * size,
                                plan.length(index),
                                rows)
                        : scratch(index);
        kept.add(place);
        transposed.add(add(place.t()));
        sums.add(add(buffers.chunkSums().select(0, index)));
    }

    private Tensor view(Piece piece, long size, long start, long length, long width) {
        return add(
                buffers.rounded()
                        .get(piece, size, buffers.options(), type)
                        .narrow(0, start, length * width)
                        .view(length, width));
    }

    private Tensor add(Tensor view) {
        all.add(view.retainReference());
        return view;
    }

    private int which(int index) {
        return index == plan.count() - 1 ? 1 : 0;
    }

    boolean fits(ChunkBuffers memory, boolean smoothed) {
        return rows == memory.sums().size(0) && plan.equals(memory.plan()) && smooth == smoothed;
    }

    /** Returns the place of a chunk's rounded weights, [classes, even features]. */
    Tensor weight(int index) {
        return weights[which(index)];
    }

    /** Returns the same without what makes the features an even number, [classes, features]. */
    Tensor ofFeatures(int index) {
        return ofFeatures[which(index)];
    }

    /** Returns the place of a chunk's logits in float32, [classes, rows]. */
    Tensor logits(int index) {
        return logits[which(index)];
    }

    /** Returns a place for rounded numbers that nobody keeps, [classes, rows]. */
    Tensor scratch(int index) {
        return scratch[which(index)];
    }

    /** Returns the place of a chunk's rounded exponentials, [classes, rows]. */
    Tensor kept(int index) {
        return kept.get(index);
    }

    /** Returns the same, [rows, classes]. */
    Tensor transposed(int index) {
        return transposed.get(index);
    }

    /** Returns where the sums over a chunk's classes go, float32 [rows]. */
    Tensor sum(int index) {
        return sums.get(index);
    }

    /** Returns the place of a product with weights in bfloat16, [rows, even features]. */
    Tensor product() {
        return product;
    }

    /** Frees the views. */
    @Override
    public void close() {
        all.forEach(Tensor::close);
    }
}
