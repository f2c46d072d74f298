package io.djltp.internal.head;

import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.HostReads;

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
 * <p>A focal loss has \(f(e) = (1 - \exp(-e))^\gamma e\) in place of the label's \(e = \log Z -
 * z_y\), and \(c_y f'(e)\) in place of \(c_y\) in the gradient, but for the z-loss.
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

    private final LossOptions options;
    private final long classes;
    private final int rows;
    private final double smoothing; // α
    private final double meanWeight; // of the classes
    private final double[] weights; // w
    private final double[] shares; // r
    private final double[] normalisers; // S
    private final double[] labelLogits; // z_y - m, the mean of several by their weights
    private final double[] labelSums; // of exp(z_y - m)
    private final double[] logits; // the sums of all z_k, with label smoothing
    private final double[] largest; // m
    private final double[] others; // the normalisers without the labels, if they are in none

    /**
     * Creates the loss of a batch.
     *
     * @param labels the labels, and the options of the loss
     * @param statistics what the ranks have of the rows
     * @param ofLabels the logits of the labels, by place
     * @param withLabels whether the labels' exponentials are in the sums
     */
    SoftmaxLoss(ClassLabels labels, Statistics statistics, double[] ofLabels, boolean withLabels) {
        options = labels.options;
        classes = labels.classes;
        rows = labels.counts.length;
        smoothing = options.labelSmoothing();
        meanWeight = meanWeight(options);
        double share = share(labels);
        weights = byRow(i -> share * labels.weights[i]);
        shares = byRow(i -> labels.counts[i] ? share : 0);
        logits = smoothing > 0 ? byRow(statistics::logits) : new double[0];
        largest = byRow(statistics::largestOffset);
        labelLogits = new double[rows];
        labelSums = new double[rows];
        for (int i = 0; i < labels.all.length; i++) {
            if (labels.all[i] != options.ignoreIndex()) {
                int row = i / labels.width;
                largest[row] = Math.max(largest[row], ofLabels[i]);
            }
        }
        for (int i = 0; i < labels.all.length; i++) {
            if (labels.all[i] != options.ignoreIndex()) {
                int row = i / labels.width;
                double logit = ofLabels[i] - largest[row];
                labelLogits[row] += labels.parts[i] * logit;
                labelSums[row] += Math.exp(logit);
            }
        }
        others = byRow(i -> statistics.sum(i, largest[i]));
        normalisers = byRow(i -> others[i] + (withLabels ? 0 : labelSums[i]));
    }

    private double[] byRow(IntToDoubleFunction number) {
        double[] numbers = new double[rows];
        Arrays.setAll(numbers, number);
        return numbers;
    }

    /**
     * What the ranks have of the rows, one rank after the other: the sums of the exponentials, what
     * was subtracted from the logits before, with label smoothing the sums of the logits, the
     * logits of the labels by place, 0 for those of other ranks, and what else is read with them.
     *
     * @param numbers all of it
     * @param ranks the number of ranks
     * @param size what a rank has
     * @param rows the number of rows
     * @param labels where the logits of labels begin in what a rank has
     */
    record Statistics(double[] numbers, int ranks, int size, int rows, int labels) {

        /**
         * Gathers the numbers of the ranks, and reads them at once.
         *
         * @param shard the ranks, or {@code null} for this one alone
         * @param sums the sums of this rank's exponentials, float64 [rows]
         * @param offsets what was subtracted from its logits, [rows]
         * @param logits the sums of its logits, or {@code null} without label smoothing
         * @param labelLogits those of its labels, [places]
         * @param more what else is read of this rank alone, behind all, float64, or {@code null}
         */
        static Statistics gather(
                @Nullable ClassShard shard,
                Tensor sums,
                Tensor offsets,
                @Nullable Tensor logits,
                Tensor labelLogits,
                @Nullable Tensor more) {
            TensorVector ofRank = new TensorVector(sums, offsets);
            if (logits != null) {
                ofRank.push_back(logits);
            }
            ofRank.push_back(labelLogits);
            Tensor own = torch.cat(ofRank);
            Tensor all = shard == null ? own.unsqueeze(0) : shard.allGather(own);
            Tensor flat = all.view(-1);
            Tensor read = more == null ? flat : torch.cat(new TensorVector(flat, more));
            int rows = (int) sums.numel();
            return new Statistics(
                    HostReads.doubles(read),
                    (int) all.size(0),
                    (int) own.numel(),
                    rows,
                    rows * (logits == null ? 2 : 3));
        }

        /** Returns what was read of this rank alone. */
        double[] more() {
            return Arrays.copyOfRange(numbers, ranks * size, numbers.length);
        }

        /** Returns a part of what a rank has, [rows]. */
        double[] ofRows(int rank, int number) {
            int start = rank * size + number * rows;
            return Arrays.copyOfRange(numbers, start, start + rows);
        }

        /** Returns a number of a rank. */
        double get(int rank, int place) {
            return numbers[rank * size + place];
        }

        /** Returns what a rank has subtracted from its logits of a row. */
        double offset(int rank, int row) {
            return get(rank, rows + row);
        }

        private double largestOffset(int row) {
            double found = offset(0, row);
            for (int rank = 1; rank < ranks; rank++) {
                found = Math.max(found, offset(rank, row));
            }
            return found;
        }

        /** Returns the sum of the exponentials of a row less a number. */
        private double sum(int row, double subtracted) {
            double sum = 0;
            for (int rank = 0; rank < ranks; rank++) {
                sum += get(rank, row) * Math.exp(offset(rank, row) - subtracted);
            }
            return sum;
        }

        /** Adds to the sum of the logits of a row. */
        void addToLogits(int row, double number) {
            numbers[2 * rows + row] += number;
        }

        private double logits(int row) {
            double sum = 0;
            for (int rank = 0; rank < ranks; rank++) {
                sum += get(rank, 2 * rows + row);
            }
            return sum;
        }

        /**
         * Returns the logits of the labels by place.
         *
         * @param count the number of places
         */
        double[] labelLogits(int count) {
            double[] found = new double[count];
            for (int rank = 0; rank < ranks; rank++) {
                for (int i = 0; i < count; i++) {
                    found[i] += get(rank, labels + i); // of all ranks but one it is 0
                }
            }
            return found;
        }
    }

    /** Checks that a loss can be computed of so many classes, by a fused head without logits. */
    static void check(LossOptions options, long classes, boolean fused) {
        float[] weights = options.classWeights();
        if (weights != null && weights.length != classes) {
            throw Errors.argument(
                    "The loss has the weights of %s classes, and the logits are those of %s: give"
                            + " LossOptions a weight for each class",
                    weights.length, classes);
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
     * @param device options of the device
     * @return the loss of the batch, a scalar in float32, or those of the rows, [rows]
     */
    Tensor value(TensorOptions device) {
        double[] losses = byRow(this::loss);
        Tensor value =
                options.reduction() == Reduction.NONE
                        ? tensor(device, losses)
                        : torch.scalar_tensor(new Scalar(Arrays.stream(losses).sum()), device);
        return value.to(ScalarType.Float);
    }

    private double loss(int row) {
        double logNormaliser = Math.log(normalisers[row]);
        double loss = focused(logNormaliser - labelLogits[row]) * weights[row];
        if (smoothing > 0) {
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
        return HostReads.toDevice(device.device(), numbers);
    }

    /** Returns whole numbers on the device of a tensor. */
    static Tensor index(Tensor like, long... values) {
        return HostReads.toDevice(like.device(), values);
    }

    private double focused(double entropy) {
        if (options.focusing() == 0) {
            return entropy;
        }
        double least = Math.max(0, entropy); // rounded, it may be less
        return Math.pow(-Math.expm1(-least), options.focusing()) * least;
    }

    /** Returns the derivative of {@link #focused} of a row, times the weight of the row. */
    private double labelWeight(int row) {
        double gamma = options.focusing();
        double entropy = gamma == 0 ? 0 : Math.log(normalisers[row]) - labelLogits[row];
        if (gamma == 0 || entropy <= 0) {
            return gamma == 0 ? weights[row] : 0;
        }
        double others = -Math.expm1(-entropy);
        double slope = 1 + gamma * Math.exp(-entropy) * entropy / others;
        return weights[row] * slope * Math.pow(others, gamma);
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
        double weight = shares[row] * meanWeight * smoothing - labelPart(row);
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

    /** Returns {@code -w f' (1 - α)}, which is added to the gradient of a label's logit. */
    double labelPart(int row) {
        return labelWeight(row) * (smoothing - 1);
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
        double ofOthers = part * others[row] + (part * labelSums[row] - exponential);
        double smoothed = shares[row] * meanWeight * smoothing + zSlope(row);
        return labelPart(row) * ofOthers / normalisers[row]
                + smoothed * (exponential / normalisers[row]);
    }
}
