package io.djltp.internal.head;

import io.djltp.head.LossOptions;
import io.djltp.torch.Precision;

/**
 * What a head that computes in 16 bits may differ by from a {@link HeadReference}. With the unit
 * roundoff u and \(d_i = (2u + u^2) \max_k \sum_j |x_{ij} w_{kj}|\), the most that a logit of row i
 * is off by:
 *
 * <ul>
 *   <li>the logarithm of the normaliser is off by d, and the label's logit is exact
 *   <li>a probability p is off by the factor {@code exp(2d)} at most: its own logit and the
 *       normaliser. So is the 1 - p of a label, which is the sum of the others' p
 *   <li>two factors of the gradient of the weights are rounded, and three times something of that
 *       of the features: factors of {@code (1 + u)^3} at most
 *   <li>with label smoothing, what is rounded is {@code p - alpha/n}, and of the sums of weights
 *       {@code alpha/n} times a weight
 *   <li>1e-5 of what is summed up for float32
 * </ul>
 */
final class RoundedBounds {

    private static final double FLOAT32 = 1e-5;

    private final double u;
    private final HeadReference data;
    private final LossOptions options;

    double loss = FLOAT32;
    final HeadStep.Bounds ofGradients;

    RoundedBounds(HeadReference data, LossOptions options, boolean biased, Precision precision) {
        this.data = data;
        this.options = options;
        u = precision.roundingError();
        ofGradients =
                new HeadStep.Bounds(
                        new double[data.x.length],
                        new double[data.weight.length],
                        new double[data.classes]);
        for (int i = 0; i < data.rows; i++) {
            if (data.labels[i] != options.ignoreIndex()) {
                addRow(i, data.logits(i, biased), 1.0 / data.counted(options));
            }
        }
    }

    private void addRow(int row, double[] logits, double share) {
        double largest = 0;
        for (int k = 0; k < data.classes; k++) {
            double absolute = 0;
            for (int j = 0; j < data.features; j++) {
                absolute += Math.abs(data.x[row * data.features + j] * weight(k, j));
            }
            largest = Math.max(largest, absolute);
        }
        double d = (2 * u + u * u) * largest;
        double log = HeadReference.logSumExp(logits);
        double z = options.zLoss();
        double alpha = options.labelSmoothing();
        // the mean of all logits is off by d too
        loss += share * ((1 + alpha) * d + z * (2 * Math.abs(log) * d + d * d));
        double slope = 1 + 2 * z * log;
        double off = Math.exp(2 * d) * Math.pow(1 + u, 3) - 1 + 2 * z * d;
        for (int k = 0; k < data.classes; k++) {
            double p = Math.exp(logits[k] - log);
            boolean label = k == data.labels[row];
            double inexact = label && alpha == 0 ? Math.min(p, 1 - p) + 2 * z * p * log : p * slope;
            double bound = off * inexact + 4 * u * alpha / data.classes;
            bound += label ? 4 * u * alpha : 0; // the 1 - alpha of a label in one product with p
            bound += FLOAT32;
            ofGradients.ofBias()[k] += share * bound;
            for (int j = 0; j < data.features; j++) {
                int ofX = row * data.features + j;
                ofGradients.ofFeatures()[ofX] += share * bound * Math.abs(weight(k, j));
                ofGradients.ofWeight()[k * data.features + j] +=
                        share * bound * Math.abs(data.x[ofX]);
            }
        }
    }

    private double weight(int k, int j) {
        return data.weight[k * data.features + j];
    }
}
