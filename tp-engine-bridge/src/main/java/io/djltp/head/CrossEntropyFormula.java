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
 * loss      = w ((1 - α) (log Z - z_y) + α (log Z - Σ z_k / n) + ζ (log Z)²)
 * dloss/dz_k = w ((1 + 2 ζ log Z) exp(z_k - m) / S - α / n - (1 - α) [k = y])
 * </pre>
 *
 * <p>where w, the weight of the row, is one over the number of rows that count, or zero. Everything
 * here has one number for each row, in float64. No digits are lost where logits are large: \(m\) is
 * subtracted from \(z_y\) and the mean before \(\log S\) is added.
 */
final class CrossEntropyFormula {

    /** The rows of {@link #newSums}. */
    static final int NORMALISER = 0; // S

    static final int LABEL = 1; // z_y - m
    static final int LOGITS = 2; // the sum of all z_k; with label smoothing only

    private final LossOptions options;
    private final long classes;
    private final Tensor rowWeights;
    private final Tensor largest;
    private final Tensor sums;

    /**
     * Creates the formula of a batch.
     *
     * @param options the options of the loss
     * @param classes the number n of classes over all ranks
     * @param rowWeights the weights w of the rows, [rows]
     * @param largest the largest logits m over all ranks, [rows]
     * @param sums the sums over all ranks, see {@link #newSums}
     */
    CrossEntropyFormula(
            LossOptions options, long classes, Tensor rowWeights, Tensor largest, Tensor sums) {
        this.options = options;
        this.classes = classes;
        this.rowWeights = rowWeights;
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

    /** Returns the weights w of the rows, float64 [rows]. */
    static Tensor rowWeights(ShardLabels labels, TensorOptions wide) {
        double[] weights = new double[labels.counts.length];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = labels.counts[i] ? 1.0 / labels.validRows : 0;
        }
        return AbstractTensor.create(weights).to(wide.device(), ScalarType.Double);
    }

    /** Returns the loss, the sum over the rows, a scalar in float64. */
    Tensor loss() {
        double alpha = options.labelSmoothing();
        Tensor logNormaliser = sums.select(0, NORMALISER).log();
        Tensor losses = logNormaliser.sub(sums.select(0, LABEL)); // log Z - z_y
        if (alpha > 0) {
            Tensor mean = sums.select(0, LOGITS).div(new Scalar((double) classes)).sub(largest);
            Tensor smoothed = logNormaliser.sub(mean);
            losses = losses.mul(new Scalar(1 - alpha)).add(smoothed, new Scalar(alpha));
        }
        if (options.zLoss() > 0) {
            Tensor logZ = logNormaliser.add(largest);
            losses = losses.add(logZ.square(), new Scalar((double) options.zLoss()));
        }
        return losses.mul(rowWeights).sum();
    }

    /**
     * Returns {@code w (1 + 2 ζ log Z) / S}, by which {@code exp(z_k - m)} is multiplied, [rows].
     */
    Tensor softmaxFactor() {
        Tensor factor = rowWeights.div(sums.select(0, NORMALISER));
        if (options.zLoss() > 0) {
            Tensor logZ = sums.select(0, NORMALISER).log().add_(largest);
            Scalar twice = new Scalar(2.0 * options.zLoss());
            factor.mul_(logZ.mul_(twice).add_(new Scalar(1.0)));
        }
        return factor;
    }

    /** Returns {@code w α / n}, which is subtracted from the gradient of each logit, [rows]. */
    Tensor smoothedShare() {
        return rowWeights.mul(smoothedShare(options, classes));
    }

    /** Returns {@code α / n}. */
    static Scalar smoothedShare(LossOptions options, long classes) {
        return new Scalar((double) options.labelSmoothing() / Math.max(1, classes));
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

    Tensor rowWeights() {
        return rowWeights;
    }
}
