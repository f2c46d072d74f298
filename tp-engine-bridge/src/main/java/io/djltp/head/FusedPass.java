package io.djltp.head;

import io.djltp.update.WeightUpdate;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.util.ArrayList;
import java.util.List;

/**
 * One step of a {@link FusedCrossEntropy} on one rank: the pass over the weights that computes the
 * loss, and the pass that updates them. Everything large lies in the {@link FusedMemory}, and is
 * computed by the {@link ChunkLane}s.
 *
 * <p>Exponentials are taken of the logits as they are, which is as exact as above the largest logit
 * as long as their sum is neither too large nor too small for float32; {@link #isUsable()} says
 * whether it was. A guarded pass lowers the logits by the largest one so far, at the cost of some
 * more operations a chunk, and can always be used.
 *
 * <p>With label smoothing the features get one more row, of zeros. Its logits are zero and their
 * exponentials one, so that the products that are computed anyway yield the sum of all weights,
 * which the loss and {@link LaneSmoothing} need.
 */
final class FusedPass {

    /** Sums of which no summand that matters has left the range of float32. */
    private static final double LEAST_SUM = 1e-20;

    private static final double LARGEST_SUM = 1e30;

    final FusedMemory memory;
    final ChunkBuffers buffers; // shared by the lanes
    final LabelRows labels;
    final LossOptions options;
    final long rows; // of the batch
    final long total; // classes of all ranks that are computed with

    private final Lanes threads;
    private final boolean guarded;

    FusedPass(
            FusedMemory memory,
            Lanes threads,
            LabelRows labels,
            LossOptions options,
            long total,
            boolean guarded) {
        this.memory = memory;
        this.threads = threads;
        this.labels = labels;
        this.options = options;
        this.total = total;
        this.guarded = guarded;
        buffers = memory.shared();
        rows = labels.counts.length;
        useBuffers();
    }

    boolean isSmooth() {
        return options.labelSmoothing() > 0;
    }

    boolean isGuarded() {
        return guarded;
    }

    private void useBuffers() {
        memory.setRows(rows + (isSmooth() ? 1 : 0));
    }

    /** Returns the part of the batch, without the row for label smoothing. */
    Tensor batch(Tensor tensor) {
        return tensor.narrow(0, 0, rows);
    }

    /** Returns what the exponentials of this rank were computed above, [rows]. */
    Tensor top() {
        return batch(buffers.column("top"));
    }

    /** Returns the features, and the row for label smoothing, [features, rows]. */
    Tensor transposedFeatures() {
        return buffers.columns("transposed features");
    }

    /**
     * Returns what the exponentials in the products of this rank were lowered by for label
     * smoothing, above {@link #top()}, [rows].
     */
    Tensor shift() {
        return batch(buffers.column("shift"));
    }

    /** Returns what a smoothed label gives to each of some classes, if they are all. */
    Scalar smoothedShare(long classes) {
        return new Scalar((double) options.labelSmoothing() / Math.max(1, classes));
    }

    /** Returns what the gradient of a label's weight is made of, [labels, features]. */
    Tensor labelRows() {
        return buffers.rows("label rows");
    }

    /** Returns what the gradient of a label's bias is made of, [labels]. */
    Tensor labelParts() {
        return buffers.column("label parts");
    }

    /**
     * Computes the loss of all chunks.
     *
     * @param x the features, [rows, features]
     * @param linear the layer
     */
    void run(Tensor x, ChunkedLinear linear) {
        Tensor features = buffers.rows("features");
        batch(features).copy_(x);
        if (isSmooth()) {
            features.select(0, rows).zero_();
        }
        transposedFeatures().copy_(features.t());
        List<ChunkLane> lanes = lanes(linear);
        threads.run(lanes.size(), lane -> lanes.get(lane).run());
        combine(lanes);
    }

    private List<ChunkLane> lanes(ChunkedLinear linear) {
        List<ChunkLane> lanes = new ArrayList<>();
        for (ChunkBuffers own : memory.lanes()) {
            lanes.add(new ChunkLane(this, own, linear.in(own)));
        }
        return lanes;
    }

    /** Sums up what the lanes have, above the largest logit of all of them. */
    private void combine(List<ChunkLane> lanes) {
        Tensor top = buffers.column("top").copy_(lanes.get(0).top());
        for (ChunkLane lane : lanes) {
            torch.maximum_out(top, top, lane.top());
        }
        Tensor sum = buffers.wideColumn("sum").zero_();
        Tensor products = buffers.rows("products").zero_();
        Tensor factor = buffers.column("factor");
        for (ChunkLane lane : lanes) {
            torch.sub_out(factor, lane.top(), top).exp_();
            sum.addcmul_(lane.sum(), factor.to(sum.scalar_type()));
            products.addcmul_(lane.products(), factor.unsqueeze(1));
        }
        if (isSmooth()) {
            combineShifts(lanes, top);
        }
    }

    /** Moves the products to one shift: the mean of the exponentials of all lanes. */
    private void combineShifts(List<ChunkLane> lanes, Tensor top) {
        long classes = memory.lanes().stream().mapToLong(l -> l.plan().range().length()).sum();
        Tensor sum = batch(buffers.wideColumn("sum"));
        shift().copy_(sum.mul(smoothedShare(classes)));
        Tensor products = batch(buffers.rows("products"));
        Tensor factor = buffers.column("factor");
        for (ChunkLane lane : lanes) {
            torch.sub_out(factor, lane.top(), top).exp_();
            Tensor moved = batch(lane.shift().mul(factor)).sub_(shift());
            LaneSmoothing.add(products, moved, lane.products().select(0, rows));
        }
    }

    /** Returns whether nothing was lost by exponentials that were too large or too small. */
    boolean isUsable() {
        Tensor sum = batch(buffers.wideColumn("sum"));
        if (guarded || rows == 0) {
            return true;
        }
        double least = sum.min().item_double();
        double largest = sum.max().item_double(); // NaN if any is
        return least >= LEAST_SUM
                && largest <= LARGEST_SUM
                && buffers.rows("products").isfinite().all().item_bool();
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param linear the layer
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the update, or {@code null} if the weights are not to be changed
     * @param scale what the loss was multiplied with
     */
    void update(ChunkedLinear linear, Tensor biasGradient, WeightUpdate update, float scale) {
        if (update == null && biasGradient == null) {
            return;
        }
        useBuffers();
        softmaxFactor().copy_(batch(buffers.column("softmax factor")));
        softmaxFactor().mul_(new Scalar(scale));
        if (isSmooth()) {
            torch.mul_out(smoothedPart(), batch(buffers.column("part")), new Scalar(scale));
        } else if (!guarded) {
            scale(buffers, softmaxFactor());
        }
        List<ChunkLane> lanes = lanes(linear);
        threads.run(lanes.size(), lane -> lanes.get(lane).update(biasGradient, update, scale));
    }

    /** Returns what exponentials above {@link #top()} are multiplied with in the update, [rows]. */
    Tensor softmaxFactor() {
        return batch(buffers.column("scaled softmax factor"));
    }

    /** Returns what smoothed labels add to the gradient of each logit in the update, [rows]. */
    Tensor smoothedPart() {
        return batch(buffers.column("scaled part"));
    }

    /**
     * Returns the features, each row multiplied with its factor.
     *
     * @param own the memory of the lane
     * @param factor the factor, [rows]
     */
    Tensor scaledFeatures(ChunkBuffers own, Tensor factor) {
        return guarded ? scale(own, factor) : buffers.rows("scaled"); // for all chunks alike
    }

    private Tensor scale(ChunkBuffers own, Tensor factor) {
        Tensor scaled = own.rows("scaled");
        return torch.mul_out(scaled, buffers.rows("features"), factor.unsqueeze(1));
    }
}
