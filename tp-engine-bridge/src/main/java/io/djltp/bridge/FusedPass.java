package io.djltp.bridge;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * One step of a {@link FusedCrossEntropy} on one rank: the pass over the weights that computes the
 * loss, and the pass that updates them. Everything large lies in the {@link ChunkBuffers}.
 *
 * <p>With label smoothing the features get one more row, of zeros. Its logits are zero and their
 * exponentials one, so that the products that are computed anyway yield the sum of all weights, and
 * add the part of the gradient that is the same for all classes.
 */
@SuppressWarnings("try") // a scope is used by being open
final class FusedPass {

    final ChunkBuffers buffers;
    final LabelRows labels;
    final LossOptions options;
    final long rows; // of the batch
    final long total; // classes of all ranks that are computed with

    FusedPass(ChunkBuffers buffers, LabelRows labels, LossOptions options, long total) {
        this.buffers = buffers;
        this.labels = labels;
        this.options = options;
        this.total = total;
        rows = labels.counts.length;
        useBuffers();
    }

    boolean isSmooth() {
        return options.labelSmoothing() > 0;
    }

    private void useBuffers() {
        buffers.setRows(rows + (isSmooth() ? 1 : 0));
    }

    /** Returns the part of the batch, without the row for label smoothing. */
    Tensor batch(Tensor tensor) {
        return tensor.narrow(0, 0, rows);
    }

    /** Returns the largest logit of each row on this rank, [rows]. */
    Tensor top() {
        return batch(buffers.reference(buffers.plan().count() - 1));
    }

    /**
     * Computes the logits of all chunks and keeps, of all of them, the sums of the exponentials and
     * their products with the weights.
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
        Tensor products = buffers.rows("products").zero_();
        Tensor sum = buffers.wideColumn("sum").zero_();
        Tensor largest = buffers.column("largest");
        Tensor factor = buffers.column("factor");
        Tensor added = buffers.column("added");
        for (int i = 0; i < buffers.plan().count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                Tensor weight = linear.weight(i);
                Tensor logits = buffers.logits(i);
                linear.output(i, logits, features, rows, weight);
                Tensor before = buffers.reference(i - 1);
                Tensor now = buffers.reference(i);
                torch.amax_out(largest, logits, new long[] {1}, false);
                torch.maximum_out(now, before, largest);
                logits.sub_(now.unsqueeze(1)).exp_();
                torch.sub_out(factor, before, now).exp_();
                torch.sum_out(added, logits, new long[] {1}, false, new ScalarTypeOptional());
                sum.mul_(factor).add_(added);
                products.mul_(factor.unsqueeze(1)).addmm_(logits, weight);
            }
        }
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
        Tensor scaled = buffers.rows("scaled");
        if (isSmooth()) {
            Tensor shared = buffers.rows("label rows").select(0, rows);
            torch.mul_out(scaled.select(0, rows), shared, new Scalar(scale));
        }
        // backwards: the last chunks may still be in a cache
        for (int i = buffers.plan().count() - 1; i >= 0; i--) {
            try (PointerScope scope = new PointerScope()) {
                Tensor weight = linear.weight(i);
                Tensor exponentials = exponentials(linear, i, weight);
                Tensor factor = factor(i, scale);
                if (biasGradient != null) {
                    addBiasGradient(biasGradient, i, exponentials, factor, scale);
                }
                if (update != null) {
                    Tensor x = batch(buffers.rows("features"));
                    torch.mul_out(batch(scaled), x, factor.unsqueeze(1));
                    GradientChunk gradient = gradient(linear, i, weight, exponentials, scale);
                    update.apply(gradient, linear.classes());
                    linear.setWeight(i, gradient.weight);
                }
            }
        }
    }

    /** Returns the exponentials of a chunk, kept or computed again. */
    private Tensor exponentials(ChunkedLinear linear, int index, Tensor weight) {
        Tensor logits = buffers.logits(index);
        if (!buffers.isKept(index)) {
            linear.output(index, logits, buffers.rows("features"), rows, weight);
            Tensor last = buffers.reference(buffers.plan().count() - 1);
            logits.sub_(last.unsqueeze(1)).exp_();
        }
        return logits;
    }

    /** Returns what the exponentials of a chunk are multiplied with, [rows]. */
    private Tensor factor(int index, float scale) {
        Tensor factor = batch(buffers.column("factor"));
        Tensor softmax = batch(buffers.column("softmax factor"));
        if (buffers.isKept(index)) {
            torch.sub_out(factor, batch(buffers.reference(index)), top()).exp_();
            return factor.mul_(softmax).mul_(new Scalar(scale));
        }
        return torch.mul_out(factor, softmax, new Scalar(scale));
    }

    private GradientChunk gradient(
            ChunkedLinear linear, int index, Tensor weight, Tensor exponentials, float scale) {
        LabelsOfChunk own = labelsOf(index);
        return new GradientChunk(
                buffers,
                linear,
                index,
                weight,
                exponentials,
                buffers.rows("scaled"),
                own.classes,
                own.classes == null ? null : own.part(buffers.rows("label rows")),
                scale);
    }

    private void addBiasGradient(
            Tensor target, int index, Tensor exponentials, Tensor factor, float scale) {
        ChunkPlan plan = buffers.plan();
        Tensor gradient = target.narrow(0, plan.start(index), plan.length(index));
        torch.mv_out(gradient, batch(exponentials).t(), factor);
        if (isSmooth() && labels.valid > 0) {
            gradient.add_(new Scalar(-scale * options.labelSmoothing() / total));
        }
        LabelsOfChunk own = labelsOf(index);
        if (own.classes != null) {
            Tensor parts = own.part(buffers.column("label parts"));
            gradient.index_add_(0, own.classes, parts, new Scalar(scale));
        }
    }

    private LabelsOfChunk labelsOf(int index) {
        long start = buffers.plan().start(index);
        int from = labels.from(start);
        int to = labels.from(start + buffers.plan().length(index));
        Tensor classes = null;
        if (from < to) {
            long[] local = new long[to - from];
            for (int i = 0; i < local.length; i++) {
                local[i] = labels.classes[from + i] - start;
            }
            classes = buffers.index(local);
        }
        return new LabelsOfChunk(from, to, classes);
    }

    /** The labels that lie in a chunk, counted from its first class; {@code null} if none do. */
    private record LabelsOfChunk(int from, int to, Tensor classes) {

        Tensor part(Tensor ofAllLabels) {
            return ofAllLabels.narrow(0, from, to - from);
        }
    }
}
