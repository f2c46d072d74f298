package io.djltp.internal.head;

import io.djltp.collective.ReduceOp;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.torch.HostReads;

import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.pytorch.DoubleArrayRef;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.function.IntToDoubleFunction;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;

/**
 * The softmax cross entropy with label smoothing and z-loss, and its gradient. For a row with the
 * logits \(z_k\) of n classes, the label y, the largest logit \(m\) and the normaliser \(S = \sum_k
 * \exp(z_k - m)\), with the log-sum-exp \(\log Z = m + \log S\), the smoothing \(\alpha\) and the
 * weight \(\zeta\) of the z-loss:
 *
 * <pre>
 * loss      = r (c_y (1 - α) (log Z - z_y) + α Σ c_k (log Z - z_k) / n + c_y ζ (log Z)²)
 * dloss/dz_k = r ((c_y (1 - α) + α Σ c_j / n + 2 c_y ζ log Z) exp(z_k - m) / S
 *                 - α c_k / n - c_y (1 - α) [k = y])
 * </pre>
 *
 * <p>A row with several labels has the mean of \(c_y\) as its weight, that of \(c_y z_y\) in place
 * of the label's, and \([k = y]\) is the part of a label in the sum of the weights.
 *
 * <p>Here \(c_k\) is the weight of a class, 1 if nothing is said, and r is one over the sum of the
 * \(c_y\) of all rows that count, or one without a mean, and zero of a row that does not count. \(w
 * = r c_y\) is what is called the weight of the row. Everything here has one number for each row,
 * in float64: in Java that takes less time than to call an operation of libtorch. No digits are
 * lost where logits are large: \(m\) is subtracted from \(z_y\) and the mean before \(\log S\) is
 * added.
 */
final class SoftmaxLoss {

    private static final int NORMALISER = 0; // S
    private static final int LABEL = 1; // z_y - m

    private final LossOptions options;
    private final long classes;
    private final int rows;
    private final double[] numbers; // that follow, by row
    private final double smoothing; // α
    private final double meanWeight; // of the classes
    private final double[] weights; // w
    private final double[] shares; // r
    private final double[] normalisers; // S
    private final double[] labelLogits; // z_y - m, the mean of several by their weights
    private final double @Nullable [] labelSums; // of exp(z_y - m), where they may be several
    private final double @Nullable [] logits; // the sums of all z_k, with label smoothing
    private final double[] largest; // m
    private final double[] others; // the normalisers without the labels
    private final int known; // how many of the numbers by row these are

    /**
     * Creates the loss of a batch.
     *
     * @param labels the labels, and the options of the loss
     * @param numbers the sums over all classes, first that of the exponentials, then the label's
     *     logit less the largest one; where labels are several, that of their exponentials; with
     *     label smoothing, that of the logits; then the largest logits
     * @param withLabels whether the labels' exponentials are in the sums
     */
    SoftmaxLoss(ClassLabels labels, double[] numbers, boolean withLabels) {
        options = labels.options;
        this.numbers = numbers;
        classes = labels.classes;
        rows = labels.counts.length;
        smoothing = options.labelSmoothing();
        meanWeight = meanWeight(options);
        double share = share(labels);
        weights = byRow(i -> share * labels.weights[i]);
        shares = byRow(i -> labels.counts[i] ? share : 0);
        int next = 0;
        others = part(numbers, next++);
        labelLogits = part(numbers, next++);
        labelSums = labels.areMany() ? part(numbers, next++) : null;
        logits = smoothing > 0 ? part(numbers, next++) : null;
        largest = part(numbers, next++);
        known = next;
        normalisers = byRow(i -> others[i] + (withLabels ? 0 : labelSum(i)));
    }

    private double labelSum(int row) {
        return labelSums == null ? Math.exp(labelLogits[row]) : labelSums[row];
    }

    private double[] part(double[] numbers, int number) {
        return Arrays.copyOfRange(numbers, number * rows, (number + 1) * rows);
    }

    private double[] byRow(IntToDoubleFunction number) {
        return IntStream.range(0, rows).mapToDouble(number).toArray();
    }

    /**
     * Brings together what the ranks have of the rows: two all-reduces, and one read.
     *
     * @param labels the labels, and the options of the loss
     * @param offset what the rank has subtracted from its logits, float32 [rows]
     * @param normaliser its sum of the exponentials then, float64 [rows]
     * @param labelLogits the logits of its labels, [labels]
     * @param logits the sums of its logits, [rows], or {@code null} without label smoothing
     * @param withLabels whether the exponentials of labels are in the sum
     * @param others what else is read, float64 [rows], see {@link #other}
     */
    static SoftmaxLoss reduced(
            ClassLabels labels,
            Tensor offset,
            Tensor normaliser,
            Tensor labelLogits,
            @Nullable Tensor logits,
            boolean withLabels,
            Tensor... others) {
        ClassShard shard = labels.shard;
        Tensor rows = index(offset, labels.rows);
        Tensor largest = offset.clone();
        Tensor ofPlaces =
                offset.new_full(new long[] {labels.all.length}, new Scalar(Float.NEGATIVE_INFINITY))
                        .index_copy_(0, index(offset, labels.places), labelLogits);
        if (labels.all.length > 0) {
            torch.maximum_out(
                    largest, largest, ofPlaces.view(-1, labels.width).amax(new long[] {1}, false));
        }
        shard.allReduce(largest, ReduceOp.MAX);
        Tensor m = largest.to(ScalarType.Double);
        long[] shape = {2 + (labels.areMany() ? 1 : 0) + (logits == null ? 0 : 1), m.size(0)};
        Tensor sums = torch.zeros(shape, m.options());
        Tensor factor = offset.to(ScalarType.Double).sub_(m).exp_();
        torch.mul_out(sums.select(0, NORMALISER), normaliser, factor);
        Tensor ofLabels = labelLogits.to(ScalarType.Double).sub_(m.index_select(0, rows));
        if (labels.areMany()) {
            sums.select(0, LABEL + 1).index_add_(0, rows, ofLabels.exp());
            ofLabels.mul_(tensor(m.options(), labels.parts));
        }
        sums.select(0, LABEL).index_add_(0, rows, ofLabels);
        if (logits != null) {
            sums.select(0, shape[0] - 1).copy_(logits);
        }
        shard.allReduce(sums, ReduceOp.SUM);
        TensorVector all = new TensorVector(sums.view(-1), m);
        for (Tensor other : others) {
            all.push_back(other);
        }
        return new SoftmaxLoss(labels, HostReads.doubles(torch.cat(all)), withLabels);
    }

    /** Returns what else {@link #reduced} has read. */
    double[] other(int number) {
        return part(numbers, known + number);
    }

    /** Checks that a loss can be computed of so many classes, by a fused head without logits. */
    static void check(LossOptions options, long classes, boolean fused) {
        float[] weights = options.classWeights();
        if (weights != null && weights.length != classes) {
            throw new IllegalArgumentException(
                    ("The loss has the weights of %s classes, and the logits are those"
                                    + " of %s: give LossOptions a weight for each class")
                            .formatted(weights.length, classes));
        }
        if (fused && weights != null && options.labelSmoothing() > 0) {
            throw new IllegalArgumentException(
                    "A fused head cannot compute class weights and label smoothing together: build"
                            + " it with optFusedLoss(false), or leave one of the two out");
        }
    }

    private static double meanWeight(LossOptions options) {
        double sum = 0;
        if (options.classWeights() == null) {
            return 1;
        }
        for (float weight : options.classWeights()) {
            sum += weight;
        }
        return sum / options.classWeights().length;
    }

    /**
     * Returns r, what a row counts for whose label has the weight 1: one over the sum of the
     * weights of all labels, 0 if that is 0, or one without a mean.
     */
    static double share(ClassLabels labels) {
        LossOptions options = labels.options;
        if (options.reduction() != Reduction.MEAN) {
            return 1;
        }
        double sum = DoubleStream.of(labels.weights).sum();
        return sum == 0 ? 0 : 1 / sum;
    }

    /**
     * Returns the loss.
     *
     * @param device options of float32 on the device
     * @return the loss of the batch, a scalar in float32, or those of the rows, [rows]
     */
    Tensor value(TensorOptions device) {
        double[] losses = byRow(this::loss);
        return options.reduction() == Reduction.NONE
                ? tensor(device, losses).to(ScalarType.Float)
                : torch.scalar_tensor(new Scalar(Arrays.stream(losses).sum()), device);
    }

    private double loss(int row) {
        double logNormaliser = Math.log(normalisers[row]);
        double loss = (logNormaliser - labelLogits[row]) * weights[row];
        if (logits != null) {
            double mean = logits[row] / classes - meanWeight * largest[row];
            double smoothed = (logNormaliser * meanWeight - mean) * shares[row];
            loss = (1 - smoothing) * loss + smoothing * smoothed;
        }
        return options.zLoss() > 0
                ? loss + options.zLoss() * Math.pow(logZ(row), 2) * weights[row]
                : loss;
    }

    /** Returns numbers in float64 on a device. */
    static Tensor tensor(TensorOptions device, double... numbers) {
        try (DoublePointer memory = new DoublePointer(numbers);
                DoubleArrayRef array = new DoubleArrayRef(memory, numbers.length)) {
            return torch.tensor(array, new TensorOptions(ScalarType.Double))
                    .to(device.device(), ScalarType.Double);
        }
    }

    /** Returns whole numbers on the device of a tensor. */
    static Tensor index(Tensor like, long... values) {
        return torch.tensor(values).to(like.device(), ScalarType.Long);
    }

    private double logZ(int row) {
        return Math.log(normalisers[row]) + largest[row];
    }

    /**
     * Returns by what exponentials are multiplied in the gradient.
     *
     * @param offsets what was subtracted from the logits of each row
     */
    double[] softmaxFactors(double... offsets) {
        return byRow(i -> softmaxFactor(i) * Math.exp(offsets[i] - largest[i]));
    }

    private double softmaxFactor(int row) {
        double weight = weights[row] * (1 - smoothing) + shares[row] * meanWeight * smoothing;
        return (weight + zSlope(row)) / normalisers[row];
    }

    /** Returns {@code 2 w ζ log Z}. */
    private double zSlope(int row) {
        return options.zLoss() > 0 ? 2 * options.zLoss() * weights[row] * logZ(row) : 0;
    }

    /**
     * Returns {@code r α / n} of each row, which is subtracted from the gradient of each logit as
     * often as the weight of its class says.
     */
    double[] smoothedShares() {
        double share = smoothedShare(options, classes);
        return byRow(i -> shares[i] * share);
    }

    /** Returns {@code α / n}. */
    static double smoothedShare(LossOptions options, long classes) {
        return (double) options.labelSmoothing() / Math.max(1, classes);
    }

    /** Returns {@code -w (1 - α)}, which is added to the gradient of a label's logit. */
    double labelPart(int row) {
        return weights[row] * (smoothing - 1);
    }

    /**
     * Returns the gradient of a label's logit but for {@link #smoothedShares}. In it {@code p - 1}
     * is the share of all other classes, not a difference: its digits are there also where the
     * label has all of the softmax.
     *
     * @param row the row
     * @param part what the label has in the weight of the row
     * @param logit its logit
     */
    double labelGradient(int row, double part, double logit) {
        double exponential = Math.exp(logit - largest[row]);
        double ofOthers = part * others[row] + (part * labelSum(row) - exponential);
        double smoothed = shares[row] * meanWeight * smoothing + zSlope(row);
        return labelPart(row) * ofOthers / normalisers[row]
                + smoothed * (exponential / normalisers[row]);
    }
}
