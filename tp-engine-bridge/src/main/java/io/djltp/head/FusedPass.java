package io.djltp.head;

import io.djltp.head.ChunkBuffers.Column;
import io.djltp.head.ChunkBuffers.Matrix;
import io.djltp.torch.HostReads;
import io.djltp.torch.Precision;
import io.djltp.update.WeightUpdate;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.ArrayList;
import java.util.List;

/**
 * One step of a {@link FusedCrossEntropy} on one rank: the pass over the weights that computes the
 * loss, and the pass that updates them. Everything large lies in the {@link FusedMemory}, and is
 * computed by the {@link PassWorker}s.
 *
 * <p>Exponentials are those of the logits less an {@link #offset()}. It is 0, which is as exact as
 * the largest logit as long as the sum of the exponentials is neither too large nor too small for
 * float32; {@link #isUsable()} says whether it was. A guarded pass subtracts the largest logit so
 * far, at the cost of some more operations a chunk, and can always be used. So is a pass over no
 * class at all, whose offset is below all logits.
 *
 * <p>With label smoothing the features get one more row, of zeros. Its logits are zero and their
 * exponentials one, so that the products that are computed anyway yield the sum of all weights,
 * which the loss and {@link LabelSmoothing} need.
 */
final class FusedPass {

    final FusedMemory memory;
    final ChunkBuffers buffers; // shared by the worker threads
    final ShardLabels labels;
    final LossOptions options;
    final long rows; // of the batch

    private final boolean guarded;
    private double[] otherSums; // by row
    final Precision precision; // of the factors of products
    final Float16Scales scales = new Float16Scales();

    FusedPass(
            FusedMemory memory,
            ShardLabels labels,
            LossOptions options,
            boolean guarded,
            Precision precision) {
        this.precision = precision;
        this.memory = memory;
        this.labels = labels;
        this.options = options;
        // exponentials of float16 have no range to be without the largest logit
        this.guarded = guarded || memory.classes() == 0 || isIn(Precision.FLOAT16);
        buffers = memory.shared();
        rows = labels.counts.length;
        memory.setRows(rows(rows, options, precision));
    }

    boolean isSmooth() {
        return options.labelSmoothing() > 0;
    }

    boolean isGuarded() {
        return guarded;
    }

    boolean isIn(Precision other) {
        return precision == other;
    }

    /**
     * Returns the rows that are computed with: those of the batch, one of zeros for label
     * smoothing, and one more of zeros where products in 16 bits want an even number.
     */
    static long rows(long ofBatch, LossOptions options, Precision precision) {
        long needed = ofBatch + (options.labelSmoothing() > 0 ? 1 : 0);
        return precision == Precision.FLOAT32 ? needed : RoundedBuffers.even(Math.max(1, needed));
    }

    /** Returns the part of the batch, without rows of zeros. */
    Tensor batch(Tensor tensor) {
        return buffers.batchRows() == rows ? tensor : tensor.narrow(0, 0, rows);
    }

    /** Returns what was subtracted from the logits before the exponential, [rows]. */
    Tensor offset() {
        return batch(buffers.column(Column.OFFSET));
    }

    /** Returns the features, and the row for label smoothing, [features, rows]. */
    Tensor transposedFeatures() {
        return buffers.columns(Matrix.TRANSPOSED_FEATURES);
    }

    /**
     * Returns what was subtracted from the exponentials in the products for label smoothing,
     * [rows].
     */
    Tensor shift() {
        return batch(buffers.column(Column.SHIFT));
    }

    /**
     * Returns {@link #labelParts()} times the features, the gradient of weights, [labels,
     * features].
     */
    Tensor labelGradients() {
        return buffers.rows(Matrix.LABEL_GRADIENTS);
    }

    /** Returns what the gradient of labels' logits has beside their softmax, [labels]. */
    Tensor labelParts() {
        return buffers.column(Column.LABEL_PARTS);
    }

    /**
     * Returns the logits of the labels, rounded as those that the exponentials are of, [labels].
     * The loss is the logarithm of the normaliser less the label's logit; where the label has most
     * of the normaliser, an error of its logit is in both and cancels only if it is the same.
     */
    Tensor labelLogits() {
        Tensor all = buffers.column(Column.LABEL_LOGITS);
        long count = labels.rows.length;
        return count == buffers.batchRows() ? all : all.narrow(0, 0, count);
    }

    /**
     * Computes the loss of all chunks.
     *
     * @param x the features, [rows, features]
     * @param linear the layer
     */
    void run(Tensor x, ChunkedLinear linear) {
        Tensor features = buffers.rows(Matrix.FEATURES);
        batch(features).copy_(x);
        if (features.size(0) > rows) {
            features.narrow(0, rows, features.size(0) - rows).zero_();
        }
        if (isIn(Precision.FLOAT32)) {
            transposedFeatures().copy_(features.t());
        } else {
            RoundedArithmetic.pack(this, features);
            computeLabelLogits(x, linear);
        }
        List<PassWorker> workers = workers(linear);
        memory.threads().run(workers.size(), i -> workers.get(i).run());
        combine(workers);
    }

    /** Those of labels with a margin are there. */
    private void computeLabelLogits(Tensor x, ChunkedLinear linear) {
        if (linear.isUnit() || labels.rows.length == 0) {
            return;
        }
        Tensor columns = buffers.index(labels.columns);
        Tensor logits =
                linear.rows(columns)
                        .to(ScalarType.Double)
                        .mul_(x.index_select(0, buffers.index(labels.rows)).to(ScalarType.Double))
                        .sum(1);
        if (linear.bias() != null) {
            logits.add_(linear.bias().index_select(0, columns));
        }
        labelLogits().copy_(logits);
    }

    private List<PassWorker> workers(ChunkedLinear linear) {
        List<PassWorker> workers = new ArrayList<>();
        for (ChunkBuffers each : memory.ofWorkers()) {
            workers.add(new PassWorker(this, each, linear.in(each)));
        }
        return workers;
    }

    /**
     * Sums up what the workers have, with the largest of their offsets m: each times exp(m_i - m).
     */
    private void combine(List<PassWorker> workers) {
        Tensor offset = buffers.column(Column.OFFSET).zero_(); // that of all, if not guarded
        if (guarded) {
            offset.copy_(workers.get(0).offset());
            for (PassWorker worker : workers) {
                torch.maximum_out(offset, offset, worker.offset());
            }
        }
        Tensor sums = buffers.sums().zero_();
        Tensor products = buffers.rows(Matrix.PRODUCTS).zero_();
        for (PassWorker worker : workers) {
            if (guarded) {
                Tensor factor = buffers.column(Column.FACTOR);
                torch.sub_out(factor, worker.offset(), offset).exp_();
                sums.addcmul_(worker.sums(), factor.to(sums.scalar_type()));
                products.addcmul_(worker.products(), factor.unsqueeze(1));
            } else {
                sums.add_(worker.sums());
                products.add_(worker.products());
            }
        }
        if (isSmooth()) {
            combineShifts(workers, offset);
        }
    }

    /** Moves the products to one shift: that of the exponentials of all workers. */
    private void combineShifts(List<PassWorker> workers, Tensor offset) {
        Scalar share = CrossEntropyFormula.smoothedShare(options, memory.classes());
        shift().copy_(batch(buffers.sums()).mul(share));
        Tensor products = batch(buffers.rows(Matrix.PRODUCTS));
        Tensor factor = buffers.column(Column.FACTOR);
        for (PassWorker worker : workers) {
            torch.sub_out(factor, worker.offset(), offset).exp_();
            Tensor moved = batch(worker.shift().mul(factor)).sub_(shift());
            LabelSmoothing.add(products, moved, worker.products().select(0, rows));
        }
    }

    /** Returns whether nothing was lost by exponentials that were too large or too small. */
    boolean isUsable() {
        if (guarded || rows == 0) {
            return true;
        }
        otherSums = HostReads.doubles(batch(buffers.sums()));
        return UsableRange.holdsSums(otherSums)
                && UsableRange.holdsLogits(HostReads.doubles(labelLogits()))
                && isFinite(buffers.rows(Matrix.PRODUCTS));
    }

    /**
     * Returns the sums of the exponentials of all but the label, of a pass that was not guarded.
     */
    double[] otherSums() {
        return otherSums;
    }

    /** Returns what may be infinite or NaN though the pass {@link #isUsable()}. */
    List<Tensor> unchecked() {
        if (!guarded) {
            return List.of();
        }
        Tensor sums = batch(buffers.sums());
        return isIn(Precision.FLOAT16) // of its weights some may be infinite that have no part in p
                ? List.of(sums, labelLogits(), buffers.rows(Matrix.PRODUCTS))
                : List.of(sums, labelLogits());
    }

    /** Returns what an error calls these. */
    String uncheckedName() {
        return isIn(Precision.FLOAT16)
                ? "logits or weights (float16 has none above 1,023: use float32, or bfloat16)"
                : "logits";
    }

    /** Returns whether a tensor holds no NaN and no infinite value: times 0, those are NaN. */
    static boolean isFinite(Tensor tensor) {
        return HostReads.number(tensor.mul(new Scalar(0f)).sum()) == 0;
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param linear the layer
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the update, or {@code null} if the weights are not to be changed
     * @param scale the factor of the loss in the backward pass
     * @param added what else the gradient of the weights has, or {@code null}
     */
    void update(
            ChunkedLinear linear,
            Tensor biasGradient,
            WeightUpdate update,
            float scale,
            AddedGradient.Chunks added) {
        if (update == null && biasGradient == null) {
            return;
        }
        memory.setRows(rows(rows, options, precision));
        Scalar factor = new Scalar(scale);
        torch.mul_out(softmaxFactor(), batch(buffers.column(Column.SOFTMAX_FACTOR)), factor);
        if (isSmooth()) {
            torch.mul_out(smoothedPart(), batch(buffers.column(Column.SMOOTHED_PART)), factor);
        } else if (!guarded) {
            scale(buffers, softmaxFactor());
        }
        if (isIn(Precision.FLOAT16)) {
            scales.setGradients(this, scale);
        }
        List<PassWorker> workers = workers(linear);
        memory.threads()
                .run(
                        workers.size(),
                        i -> workers.get(i).update(biasGradient, update, scale, added));
    }

    /**
     * Returns by what exponentials with the {@link #offset()} are multiplied in the gradient of the
     * scaled loss, [rows].
     */
    Tensor softmaxFactor() {
        return batch(buffers.column(Column.SCALED_SOFTMAX_FACTOR));
    }

    /** Returns what label smoothing adds to the gradient of each logit, scaled, [rows]. */
    Tensor smoothedPart() {
        return batch(buffers.column(Column.SCALED_SMOOTHED_PART));
    }

    /**
     * Returns the features, each row multiplied with its factor.
     *
     * @param ofWorker the memory of the worker thread
     * @param factor the factor, [rows]
     */
    Tensor scaledFeatures(ChunkBuffers ofWorker, Tensor factor) {
        return guarded
                ? scale(ofWorker, factor)
                : batch(buffers.rows(Matrix.SCALED_FEATURES)); // the same for all chunks
    }

    private Tensor scale(ChunkBuffers target, Tensor factor) {
        Tensor scaled = batch(target.rows(Matrix.SCALED_FEATURES));
        return torch.mul_out(scaled, batch(buffers.rows(Matrix.FEATURES)), factor.unsqueeze(1));
    }

    /**
     * The range of numbers in which a pass that subtracts nothing from its logits loses no digits.
     */
    private static final class UsableRange {

        /** Sums of which no summand that matters has left the range of float32. */
        private static final double LEAST_SUM = 1e-20;

        private static final double LARGEST_SUM = 1e30;

        private UsableRange() {}

        /**
         * Returns whether all sums of exponentials are in it, of which none then is infinite or
         * NaN.
         */
        static boolean holdsSums(double[] sums) {
            boolean all = true;
            for (double sum : sums) {
                all &= sum >= LEAST_SUM && sum <= LARGEST_SUM;
            }
            return all;
        }

        /** The same of the logits of labels, which are not in the sums. */
        static boolean holdsLogits(double[] logits) {
            double largest = Math.log(LARGEST_SUM);
            boolean all = true;
            for (double logit : logits) {
                all &= logit <= largest && logit > Double.NEGATIVE_INFINITY;
            }
            return all;
        }
    }
}
