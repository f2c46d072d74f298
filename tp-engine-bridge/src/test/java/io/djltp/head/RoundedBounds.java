package io.djltp.head;

import io.djltp.torch.Precision;

/**
 * What a head that computes in 16 bits may differ by from a {@link FusedReference}. With the unit
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

    double loss;
    final double[] featureGradient;
    final double[] weightGradient;
    final double[] biasGradient;

    RoundedBounds(FusedReference data, LossOptions options, boolean withBias, Precision precision) {
        u = precision.roundingError();
        featureGradient = new double[data.x.length];
        weightGradient = new double[data.weight.length];
        biasGradient = new double[data.classes];
        long valid =
                java.util.Arrays.stream(data.labels)
                        .filter(l -> l != options.ignoreIndex())
                        .count();
        for (int i = 0; i < data.rows; i++) {
            if (data.labels[i] != options.ignoreIndex()) {
                addRow(data, i, options, withBias, 1.0 / valid);
            }
        }
        loss += FLOAT32;
    }

    private void addRow(
            FusedReference data, int row, LossOptions options, boolean withBias, double share) {
        int features = data.features;
        double[] exponentials = new double[data.classes];
        double sum = 0;
        double largest = 0;
        for (int k = 0; k < data.classes; k++) {
            double logit = withBias ? data.bias[k] : 0;
            double absolute = 0;
            for (int j = 0; j < features; j++) {
                double product =
                        (double) data.x[row * features + j] * data.weight[k * features + j];
                logit += product;
                absolute += Math.abs(product);
            }
            largest = Math.max(largest, absolute);
            exponentials[k] = Math.exp(logit);
            sum += exponentials[k];
        }
        double d = (2 * u + u * u) * largest;
        double log = Math.log(sum);
        double z = options.zLoss();
        double alpha = options.labelSmoothing();
        // the mean of all logits is off by d too
        loss += share * ((1 + alpha) * d + z * (2 * Math.abs(log) * d + d * d));
        double slope = 1 + 2 * z * log;
        double off = Math.exp(2 * d) * Math.pow(1 + u, 3) - 1 + 2 * z * d;
        for (int k = 0; k < data.classes; k++) {
            double p = exponentials[k] / sum;
            boolean label = k == data.labels[row];
            double inexact = label && alpha == 0 ? Math.min(p, 1 - p) + 2 * z * p * log : p * slope;
            double bound = off * inexact + 4 * u * alpha / data.classes;
            bound += label ? 4 * u * alpha : 0; // the 1 - alpha of a label in one product with p
            bound += FLOAT32;
            biasGradient[k] += share * bound;
            for (int j = 0; j < features; j++) {
                int ofX = row * features + j;
                int ofWeight = k * features + j;
                featureGradient[ofX] += share * bound * Math.abs(data.weight[ofWeight]);
                weightGradient[ofWeight] += share * bound * Math.abs(data.x[ofX]);
            }
        }
    }
}
