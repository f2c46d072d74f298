package io.djltp.head;

import java.util.SplittableRandom;

/** A linear layer with a softmax cross entropy and their gradients, in float64 and whole. */
final class FusedReference {

    final int rows;
    final int features;
    final int classes;
    final float[] x;
    final float[] weight;
    final float[] bias;
    final long[] labels;

    double loss;
    double[] featureGradient;
    double[] weightGradient;
    double[] biasGradient;

    FusedReference(int rows, int features, int classes) {
        this.rows = rows;
        this.features = features;
        this.classes = classes;
        SplittableRandom random = new SplittableRandom(7);
        x = values(random, rows * features, 2);
        weight = values(random, classes * features, 1);
        bias = values(random, classes, 1);
        labels = random.longs(rows, 0, classes).toArray();
    }

    private static float[] values(SplittableRandom random, int count, double scale) {
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) (scale * (2 * random.nextDouble() - 1));
        }
        return values;
    }

    FusedReference compute(LossOptions options, boolean withBias) {
        loss = 0;
        featureGradient = new double[x.length];
        weightGradient = new double[weight.length];
        biasGradient = new double[classes];
        long valid =
                java.util.Arrays.stream(labels).filter(l -> l != options.ignoreIndex()).count();
        for (int i = 0; i < rows; i++) {
            if (labels[i] != options.ignoreIndex()) {
                addRow(i, options, withBias, 1.0 / valid);
            }
        }
        return this;
    }

    private void addRow(int row, LossOptions options, boolean withBias, double share) {
        double[] logits = new double[classes];
        double largest = Double.NEGATIVE_INFINITY;
        double mean = 0;
        for (int k = 0; k < classes; k++) {
            logits[k] = withBias ? bias[k] : 0;
            for (int j = 0; j < features; j++) {
                logits[k] += (double) x[row * features + j] * weight[k * features + j];
            }
            largest = Math.max(largest, logits[k]);
            mean += logits[k] / classes;
        }
        double sum = 0;
        for (double logit : logits) {
            sum += Math.exp(logit - largest);
        }
        double log = largest + Math.log(sum);
        double alpha = options.labelSmoothing();
        int label = (int) labels[row];
        loss += share * ((1 - alpha) * (log - logits[label]) + alpha * (log - mean));
        loss += share * options.zLoss() * log * log;
        for (int k = 0; k < classes; k++) {
            double gradient = Math.exp(logits[k] - log) * (1 + 2 * options.zLoss() * log);
            gradient -= (k == label ? 1 - alpha : 0) + alpha / classes;
            biasGradient[k] += share * gradient;
            for (int j = 0; j < features; j++) {
                featureGradient[row * features + j] += share * gradient * weight[k * features + j];
                weightGradient[k * features + j] += share * gradient * x[row * features + j];
            }
        }
    }
}
