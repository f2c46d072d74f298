package io.djltp.head;

import io.djltp.internal.torch.HostReads;

import org.bytedeco.pytorch.AbstractTensor;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

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
 * <p>where \(c_k\) is the weight of a class, 1 if nothing is said, and r is one over the sum of the
 * \(c_y\) of all rows that count, or one without a mean, and zero of a row that does not count. \(w
 * = r c_y\) is what is called the weight of the row. Everything here has one number for each row,
 * in float64: in Java that takes less time than to call an operation of libtorch. No digits are
 * lost where logits are large: \(m\) is subtracted from \(z_y\) and the mean before \(\log S\) is
 * added.
 */
final class SoftmaxLoss {

    /** The rows of {@link #newSums}. */
    static final int NORMALISER = 0; // S

    static final int LABEL = 1; // z_y - m
    static final int LOGITS = 2; // the sum of all z_k; with label smoothing only

    private final LossOptions options;
    private final long classes;
    private final double smoothing; // α
    private final double meanWeight; // of the classes
    private final double[] weights; // w
    private final double[] shares; // r
    private final double[] normalisers;
    private final double[] labelLogits; // z_y - m
    private final double[] logits; // the sums of all z_k, or null
    private final double[] largest;
    private double[] others; // the normalisers without the labels

    /**
     * Creates the loss of a batch.
     *
     * @param options the options of the loss
     * @param labels the labels
     * @param sums the sums over all ranks, see {@link #newSums}, and after them the largest logits
     */
    SoftmaxLoss(LossOptions options, ShardLabels labels, double... sums) {
        this.options = options;
        classes = labels.classes;
        smoothing = options.labelSmoothing();
        meanWeight = meanWeight(options);
        int rows = labels.counts.length;
        double share = share(options, labels);
        weights = LongStream.of(labels.all()).mapToDouble(options::weightOf).toArray();
        shares = new double[rows];
        for (int i = 0; i < rows; i++) {
            weights[i] *= share;
            shares[i] = labels.counts[i] ? share : 0;
        }
        normalisers = Arrays.copyOf(sums, rows);
        labelLogits = Arrays.copyOfRange(sums, LABEL * rows, (LABEL + 1) * rows);
        boolean smooth = smoothing > 0;
        logits = smooth ? Arrays.copyOfRange(sums, LOGITS * rows, (LOGITS + 1) * rows) : null;
        int before = smooth ? LOGITS + 1 : LOGITS;
        largest = Arrays.copyOfRange(sums, before * rows, (before + 1) * rows);
    }

    /**
     * Returns zeros for what is summed over classes and ranks: {@link #NORMALISER}, {@link #LABEL}
     * and, for label smoothing, {@link #LOGITS}.
     *
     * @param options the options of the loss
     * @param like a tensor on the device, [rows]
     * @return float64 [2 or 3, rows]
     */
    static Tensor newSums(LossOptions options, Tensor like) {
        TensorOptions wide = like.options().dtype(new ScalarTypeOptional(ScalarType.Double));
        return torch.zeros(new long[] {options.labelSmoothing() > 0 ? 3 : 2, like.size(0)}, wide);
    }

    /**
     * Reads numbers of the rows.
     *
     * @param sums what {@link #newSums} has returned, summed over all ranks
     * @param others other numbers of the rows, each [rows]
     * @return all of them, one after the other
     */
    static double[] read(Tensor sums, Tensor... others) {
        TensorVector all = new TensorVector(sums.view(-1));
        for (Tensor each : others) {
            all.push_back(each);
        }
        return HostReads.doubles(torch.cat(all));
    }

    private static double meanWeight(LossOptions options) {
        if (options.classWeights() == null) {
            return 1;
        }
        double sum = 0;
        for (float weight : options.classWeights()) {
            sum += weight;
        }
        return sum / options.classWeights().length;
    }

    /**
     * Returns r, what a row counts for whose label has the weight 1: one over the sum of the
     * weights of all labels, 0 if that is 0, or one without a mean.
     */
    static double share(LossOptions options, ShardLabels labels) {
        if (options.reduction() != Reduction.MEAN) {
            return 1;
        }
        double sum = LongStream.of(labels.all()).mapToDouble(options::weightOf).sum();
        return sum == 0 ? 0 : 1 / sum;
    }

    /** Adds the exponentials of the labels to normalisers that are sums over all other classes. */
    void addLabels() {
        others = normalisers.clone();
        for (int i = 0; i < others.length; i++) {
            normalisers[i] += Math.exp(labelLogits[i]);
        }
    }

    /**
     * Returns the loss.
     *
     * @param device options of float32 on the device
     * @return the loss of the batch, a scalar in float32, or those of the rows, [rows]
     */
    Tensor value(TensorOptions device) {
        double[] losses = new double[weights.length];
        for (int i = 0; i < losses.length; i++) {
            double logNormaliser = Math.log(normalisers[i]);
            losses[i] = (logNormaliser - labelLogits[i]) * weights[i];
            if (smoothing > 0) {
                double mean = logits[i] / classes - meanWeight * largest[i];
                double smoothed = (logNormaliser * meanWeight - mean) * shares[i];
                losses[i] = (1 - smoothing) * losses[i] + smoothing * smoothed;
            }
            if (options.zLoss() > 0) {
                losses[i] += options.zLoss() * Math.pow(logZ(i), 2) * weights[i];
            }
        }
        return options.reduction() == Reduction.NONE
                ? tensor(device, losses).to(ScalarType.Float)
                : torch.scalar_tensor(new Scalar(Arrays.stream(losses).sum()), device);
    }

    /** Returns numbers in float64 on a device. */
    static Tensor tensor(TensorOptions device, double... numbers) {
        return AbstractTensor.create(numbers).to(device.device(), ScalarType.Double);
    }

    /** Returns the largest logit of a row, over all ranks. */
    double largest(int row) {
        return largest[row];
    }

    private double logZ(int row) {
        return Math.log(normalisers[row]) + largest[row];
    }

    /** Returns by what {@code exp(z_k - m)} of each row is multiplied in the gradient. */
    double[] softmaxFactors() {
        return IntStream.range(0, weights.length).mapToDouble(this::softmaxFactor).toArray();
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
        return DoubleStream.of(shares).map(each -> each * share).toArray();
    }

    /** Returns {@code α / n}. */
    static double smoothedShare(LossOptions options, long classes) {
        return (double) options.labelSmoothing() / Math.max(1, classes);
    }

    /**
     * Returns the gradient of a label's logit without label smoothing, {@code w (p - 1 + 2 ζ p log
     * Z)}. Here {@code p - 1} is the share of all other classes, not a difference: its digits are
     * there also where the label has all of the softmax.
     */
    double labelGradient(int row) {
        double exponential = Math.exp(labelLogits[row]);
        return (zSlope(row) * exponential - others[row] * weights[row]) / normalisers[row];
    }

    /** Returns {@code -w (1 - α)}, which is added to the gradient of a label's logit. */
    double labelPart(int row) {
        return weights[row] * (smoothing - 1);
    }

    /** Returns the gradient of a label's logit without the {@link #labelPart}. */
    double sharedPart(int row) {
        double softmax = softmaxFactor(row) * Math.exp(labelLogits[row]);
        return softmax - shares[row] * smoothedShare(options, classes);
    }
}
