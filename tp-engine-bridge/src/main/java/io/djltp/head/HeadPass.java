package io.djltp.head;

import io.djltp.head.ChunkMemory.Column;
import io.djltp.head.ChunkMemory.Matrix;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.ArrayList;
import java.util.List;

/**
 * One step of a {@link FusedSoftmaxHead} on one rank: the pass over the weights that computes the
 * loss, and the pass that updates them. Everything large lies in the {@link HeadMemory}, and is
 * computed by the {@link ChunkWorker}s.
 *
 * <p>Exponentials are those of the logits less an {@link #offset()}. It is 0, which is as exact as
 * the largest logit as long as the sum of the exponentials is neither too large nor too small for
 * float32; {@link #isUsable()} says whether it was. A guarded pass subtracts the largest logit so
 * far, at the cost of some more operations a chunk, and can always be used. So is a pass over no
 * class at all, whose offset is below all logits.
 *
 * <p>With label smoothing the features get one more row, of zeros. Its logits are zero and their
 * exponentials one, so that the products that are computed anyway yield the sum of all weights,
 * which the loss and the {@link ChunkWorker} need.
 */
final class HeadPass {

    /** Sums of which no summand that matters has left the range of float32. */
    private static final double LEAST_SUM = 1e-20;

    private static final double LARGEST_SUM = 1e30;

    /** Labels are not in the sums. */
    private static final double LARGEST_LOGIT = Math.log(LARGEST_SUM);

    final ChunkMemory memory; // shared by the worker threads
    final ShardLabels labels;
    final LossOptions options;
    final Precision precision; // of the factors of products
    final long rows; // of the batch
    final RoundedArithmetic.Scales scales = new RoundedArithmetic.Scales(); // of float16

    private final HeadMemory memories;
    private final boolean guarded;
    private double[] numbers; // sums, offsets, labels' logits; and 0 if all is finite

    HeadPass(
            HeadMemory memories,
            ShardLabels labels,
            LossOptions options,
            boolean guarded,
            Precision precision) {
        this.precision = precision;
        this.memories = memories;
        this.labels = labels;
        this.options = options;
        // exponentials of float16 have no range to be without the largest logit
        this.guarded = guarded || memories.classes() == 0 || isIn(Precision.FLOAT16);
        memory = memories.shared();
        rows = labels.counts.length;
        memories.setRows(rows(rows, options, precision));
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
        return precision == Precision.FLOAT32 ? needed : ChunkMemory.even(Math.max(1, needed));
    }

    /** Returns the part of the batch, without rows of zeros. */
    Tensor batch(Tensor tensor) {
        return memory.batchRows() == rows ? tensor : tensor.narrow(0, 0, rows);
    }

    /** Returns what was subtracted from the logits before the exponential, [rows]. */
    Tensor offset() {
        return batch(memory.column(Column.OFFSET));
    }

    /** Returns the features, and the row for label smoothing, [features, rows]. */
    Tensor transposedFeatures() {
        return memory.columns(Matrix.TRANSPOSED_FEATURES);
    }

    /**
     * Returns what was subtracted from the exponentials in the products for label smoothing,
     * [rows].
     */
    Tensor shift() {
        return batch(memory.column(Column.SHIFT));
    }

    /**
     * Returns {@link #labelParts()} times the features, the gradient of weights, [labels,
     * features].
     */
    Tensor labelGradients() {
        return memory.rows(Matrix.LABEL_GRADIENTS);
    }

    /** Returns what the gradient of labels' logits has beside their softmax, [labels]. */
    Tensor labelParts() {
        return memory.column(Column.LABEL_PARTS);
    }

    /**
     * Returns the logits of the labels, rounded as those that the exponentials are of, [labels].
     * The loss is the logarithm of the normaliser less the label's logit; where the label has most
     * of the normaliser, an error of its logit is in both and cancels only if it is the same.
     */
    Tensor labelLogits() {
        Tensor column = memory.column(Column.LABEL_LOGITS);
        long count = labels.rows.length;
        return count == memory.batchRows() ? column : column.narrow(0, 0, count);
    }

    /**
     * Computes the loss of all chunks.
     *
     * @param x the features, [rows, features]
     * @param linear the layer
     */
    void run(Tensor x, ChunkedLinear linear) {
        Tensor features = memory.rows(Matrix.FEATURES);
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
        List<ChunkWorker> workers = workers(linear);
        memories.threads().run(workers.size(), i -> workers.get(i).forward());
        combine(workers);
        read(x);
    }

    /** Those of labels with a margin are there. */
    private void computeLabelLogits(Tensor x, ChunkedLinear linear) {
        if (linear.isUnit() || labels.rows.length == 0) {
            return;
        }
        Tensor columns = memory.index(labels.columns);
        Tensor logits =
                linear.rows(columns)
                        .to(ScalarType.Double)
                        .mul_(x.index_select(0, memory.index(labels.rows)).to(ScalarType.Double))
                        .sum(1);
        if (linear.bias() != null) {
            logits.add_(linear.bias().index_select(0, columns));
        }
        labelLogits().copy_(logits);
    }

    private List<ChunkWorker> workers(ChunkedLinear linear) {
        List<ChunkWorker> workers = new ArrayList<>();
        for (ChunkMemory each : memories.ofWorkers()) {
            workers.add(new ChunkWorker(this, each, linear.withMemory(each)));
        }
        return workers;
    }

    /**
     * Sums up what the workers have, with the largest of their offsets m: each times exp(m_i - m).
     */
    private void combine(List<ChunkWorker> workers) {
        Tensor offset = memory.column(Column.OFFSET).zero_(); // that of all, if not guarded
        if (guarded) {
            offset.copy_(workers.get(0).offset());
            for (ChunkWorker worker : workers) {
                torch.maximum_out(offset, offset, worker.offset());
            }
        }
        Tensor sums = memory.sums().zero_();
        Tensor products = memory.rows(Matrix.PRODUCTS).zero_();
        for (ChunkWorker worker : workers) {
            if (guarded) {
                Tensor factor = memory.column(Column.FACTOR);
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
    private void combineShifts(List<ChunkWorker> workers, Tensor offset) {
        double share = SoftmaxLoss.smoothedShare(options, memories.classes());
        shift().copy_(batch(memory.sums()).mul(new Scalar(share)));
        Tensor products = batch(memory.rows(Matrix.PRODUCTS));
        Tensor factor = memory.column(Column.FACTOR);
        for (ChunkWorker worker : workers) {
            torch.sub_out(factor, worker.offset(), offset).exp_();
            Tensor moved = batch(worker.shift().mul(factor)).sub_(shift());
            addOuter(products, moved, worker.products().select(0, rows));
        }
    }

    /**
     * Adds the same sum of weights to all rows of products.
     *
     * @param products the products, [rows of the batch, features]
     * @param factors the factor of each row, float32 [rows of the batch]
     * @param weights the sum of the weights, [features]
     */
    static void addOuter(Tensor products, Tensor factors, Tensor weights) {
        products.addcmul_(factors.unsqueeze(1), weights.unsqueeze(0));
    }

    /** Reads what has become of the rows: all of it at once. */
    private void read(Tensor x) {
        TensorVector all = new TensorVector(batch(memory.sums()), offset(), labelLogits());
        Tensor products = memory.rows(Matrix.PRODUCTS);
        Tensor zero = zeroIfFinite(guarded ? x : products);
        if (isIn(Precision.FLOAT16)) { // of whose weights some may be infinite with no part in p
            zero.add_(zeroIfFinite(products));
        }
        all.push_back(zero.view(1));
        numbers = HostReads.doubles(torch.cat(all));
    }

    /** Returns the sum of the exponentials of a row, without label smoothing but for its label. */
    double sum(int row) {
        return numbers[row];
    }

    /** Returns the {@link #offset()} of a row. */
    double offset(int row) {
        return numbers[(int) rows + row];
    }

    /** Returns one of the {@link #labelLogits()}. */
    double labelLogit(int label) {
        return numbers[2 * (int) rows + label];
    }

    /**
     * Returns whether nothing was lost by exponentials that were too large or too small; of a
     * guarded pass, whether nothing is infinite or NaN.
     */
    boolean isUsable() {
        boolean usable = true;
        for (int i = 0; i < rows; i++) {
            double sum = sum(i);
            usable &= guarded ? Double.isFinite(sum) : sum >= LEAST_SUM && sum <= LARGEST_SUM;
        }
        for (int i = 0; i < labels.rows.length; i++) {
            double logit = labelLogit(i);
            usable &= Double.isFinite(logit) && (guarded || logit <= LARGEST_LOGIT);
        }
        return usable && numbers[numbers.length - 1] == 0;
    }

    /** Returns what an error calls what is infinite or NaN in a guarded pass. */
    String uncheckedName() {
        return isIn(Precision.FLOAT16)
                ? "logits or weights (float16 has none above 1,023: use float32, or bfloat16)"
                : "logits";
    }

    /** Returns whether a tensor holds no NaN and no infinite value. */
    static boolean isFinite(Tensor tensor) {
        return HostReads.number(zeroIfFinite(tensor)) == 0;
    }

    /** NaN and infinite values are NaN times 0. */
    private static Tensor zeroIfFinite(Tensor tensor) {
        return tensor.mul(new Scalar(0f)).sum();
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
        memories.setRows(rows(rows, options, precision));
        Scalar factor = new Scalar(scale);
        torch.mul_out(softmaxFactor(), batch(memory.column(Column.SOFTMAX_FACTOR)), factor);
        if (isSmooth()) {
            torch.mul_out(smoothedPart(), batch(memory.column(Column.SMOOTHED_PART)), factor);
        } else if (!guarded) {
            scale(memory, softmaxFactor());
        }
        if (isIn(Precision.FLOAT16)) {
            scales.setGradients(this, scale);
        }
        List<ChunkWorker> workers = workers(linear);
        memories.threads()
                .run(
                        workers.size(),
                        i -> workers.get(i).backwardAndUpdate(biasGradient, update, scale, added));
    }

    /**
     * Returns by what exponentials with the {@link #offset()} are multiplied in the gradient of the
     * scaled loss, [rows].
     */
    Tensor softmaxFactor() {
        return batch(memory.column(Column.SCALED_SOFTMAX_FACTOR));
    }

    /** Returns what label smoothing adds to the gradient of each logit, scaled, [rows]. */
    Tensor smoothedPart() {
        return batch(memory.column(Column.SCALED_SMOOTHED_PART));
    }

    /**
     * Returns the features, each row multiplied with its factor.
     *
     * @param ofWorker the memory of the worker thread
     * @param factor the factor, [rows]
     */
    Tensor scaledFeatures(ChunkMemory ofWorker, Tensor factor) {
        return guarded
                ? scale(ofWorker, factor)
                : batch(memory.rows(Matrix.SCALED_FEATURES)); // the same for all chunks
    }

    private Tensor scale(ChunkMemory target, Tensor factor) {
        Tensor scaled = batch(target.rows(Matrix.SCALED_FEATURES));
        return torch.mul_out(scaled, batch(memory.rows(Matrix.FEATURES)), factor.unsqueeze(1));
    }
}
