package io.djltp.head;

import org.bytedeco.pytorch.AbstractTensor;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

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
 * in float64. No digits are lost where logits are large: \(m\) is subtracted from \(z_y\) and the
 * mean before \(\log S\) is added.
 */
final class CrossEntropyFormula {

    /** The rows of {@link #newSums}. */
    static final int NORMALISER = 0; // S

    static final int LABEL = 1; // z_y - m
    static final int LOGITS = 2; // the sum of all z_k; with label smoothing only

    private final LossOptions options;
    private final long classes;
    private final Tensor rowWeights; // w
    private final Tensor shares; // r
    private final double meanWeight; // of the classes
    private final Tensor largest;
    private final Tensor sums;

    /**
     * Creates the formula of a batch.
     *
     * @param options the options of the loss
     * @param classes the number n of classes over all ranks
     * @param weights the weights of the rows, see {@link #rowWeights}
     * @param largest the largest logits m over all ranks, [rows]
     * @param sums the sums over all ranks, see {@link #newSums}
     */
    CrossEntropyFormula(
            LossOptions options, long classes, Tensor weights, Tensor largest, Tensor sums) {
        this.options = options;
        this.classes = classes;
        rowWeights = weights.select(0, 0);
        shares = weights.select(0, 1);
        meanWeight = meanWeight(options);
        this.largest = largest;
        this.sums = sums;
    }

    /**
     * Returns zeros for what is summed over classes and ranks: {@link #NORMALISER}, {@link #LABEL}
     * and, for label smoothing, {@link #LOGITS}.
     *
     * @return [2 or 3, rows]
     */
    static Tensor newSums(LossOptions options, long rows, TensorOptions wide) {
        return torch.zeros(new long[] {options.labelSmoothing() > 0 ? 3 : 2, rows}, wide);
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

    /** Returns the w and the r of all rows, float64 [2, rows]. */
    static Tensor rowWeights(ShardLabels labels, LossOptions options, TensorOptions wide) {
        Tensor all = AbstractTensor.create(weightsOf(labels, options));
        return all.to(wide.device(), ScalarType.Double).view(2, labels.counts.length);
    }

    /** Returns the w of all rows, and after them the r. */
    static double[] weightsOf(ShardLabels labels, LossOptions options) {
        int rows = labels.counts.length;
        double[] weights = new double[2 * rows];
        double sum = 0;
        for (int i = 0; i < rows; i++) {
            weights[i] = options.weightOf(labels.labelOf(i));
            weights[rows + i] = labels.counts[i] ? 1 : 0;
            sum += weights[i];
        }
        for (int i = 0; i < weights.length && options.reduction() == Reduction.MEAN; i++) {
            weights[i] = sum == 0 ? 0 : weights[i] / sum;
        }
        return weights;
    }

    /** Returns the loss of the batch, a scalar in float64, or those of the rows, [rows]. */
    Tensor loss() {
        double alpha = options.labelSmoothing();
        Tensor logNormaliser = sums.select(0, NORMALISER).log();
        Tensor losses = logNormaliser.sub(sums.select(0, LABEL)).mul(rowWeights); // log Z - z_y
        if (alpha > 0) {
            Scalar mean = new Scalar(meanWeight);
            Tensor logits = sums.select(0, LOGITS).div(new Scalar((double) classes));
            Tensor smoothed = logNormaliser.mul(mean).sub(logits.sub(largest.mul(mean)));
            losses = losses.mul(new Scalar(1 - alpha));
            losses = losses.add(smoothed.mul(shares), new Scalar(alpha));
        }
        if (options.zLoss() > 0) {
            Tensor logZ = logNormaliser.add(largest);
            losses =
                    losses.add(logZ.square().mul(rowWeights), new Scalar((double) options.zLoss()));
        }
        return options.reduction() == Reduction.NONE ? losses : losses.sum();
    }

    /** Returns by what {@code exp(z_k - m)} is multiplied in the gradient, [rows]. */
    Tensor softmaxFactor() {
        Tensor weights = rowWeights;
        if (options.classWeights() != null && options.labelSmoothing() > 0) {
            double alpha = options.labelSmoothing();
            weights = rowWeights.mul(new Scalar(1 - alpha));
            weights.add_(shares, new Scalar(alpha * meanWeight));
        }
        Tensor factor = weights.div(sums.select(0, NORMALISER));
        if (options.zLoss() > 0) {
            Tensor logZ = sums.select(0, NORMALISER).log().add_(largest).mul_(rowWeights);
            logZ.div_(sums.select(0, NORMALISER));
            factor.add_(logZ, new Scalar(2.0 * options.zLoss()));
        }
        return factor;
    }

    /**
     * Returns {@code r α / n}, which is subtracted from the gradient of each logit as often as the
     * weight of its class says, [rows].
     */
    Tensor smoothedShare() {
        return shares.mul(smoothedShare(options, classes));
    }

    /** Returns {@code α / n}. */
    static Scalar smoothedShare(LossOptions options, long classes) {
        return new Scalar((double) options.labelSmoothing() / Math.max(1, classes));
    }

    /**
     * Adds the exponentials of the labels to normalisers that are sums over all other classes.
     *
     * @return the normalisers as they were, [rows]
     */
    Tensor addLabels() {
        Tensor normaliser = sums.select(0, NORMALISER);
        Tensor others = normaliser.clone();
        normaliser.add_(sums.select(0, LABEL).exp());
        return others;
    }

    /**
     * Returns the gradient of a label's logit without label smoothing, {@code w (p - 1 + 2 ζ p log
     * Z)}. Here {@code p - 1} is the share of all other classes, not a difference: its digits are
     * there also where the label has all of the softmax.
     *
     * @param rows the rows of labels, int64 [labels]
     * @param others what {@link #addLabels} has returned
     * @return [labels]
     */
    Tensor labelGradient(Tensor rows, Tensor others) {
        Tensor normaliser = sums.select(0, NORMALISER);
        Tensor gradient = others.div(normaliser).neg_().mul_(rowWeights);
        if (options.zLoss() > 0) {
            Tensor logZ = normaliser.log().add_(largest).mul_(rowWeights);
            logZ.mul_(sums.select(0, LABEL).exp().div_(normaliser));
            gradient.add_(logZ, new Scalar(2.0 * options.zLoss()));
        }
        return gradient.index_select(0, rows);
    }

    /**
     * Returns {@code -w (1 - α)}, which is added to the gradient of a label's logit.
     *
     * @param rows the rows of labels, int64 [labels]
     * @return [labels]
     */
    Tensor labelPart(Tensor rows) {
        Scalar factor = new Scalar((double) options.labelSmoothing() - 1.0);
        return rowWeights.index_select(0, rows).mul_(factor);
    }
}
