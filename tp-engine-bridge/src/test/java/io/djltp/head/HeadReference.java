package io.djltp.head;

import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.function.DoubleSupplier;

/**
 * The loss of a head over some of its classes, or with a margin, by its definition in float64, and
 * its gradients by finite differences.
 */
final class HeadReference {

    final int rows;
    final int features;
    final int classes;
    final double[] x;
    final double[] weight;
    final double[] bias;
    final long[] labels;
    private final LossOptions options;
    private final Margin margin;
    int[] used; // the classes of the softmax, over all ranks

    HeadReference(int rows, int features, int classes, LossOptions options, Margin margin) {
        this.rows = rows;
        this.features = features;
        this.classes = classes;
        this.options = options;
        this.margin = margin;
        SplittableRandom random = new SplittableRandom(3);
        x = values(random, rows * features);
        weight = values(random, classes * features);
        bias = values(random, classes);
        labels = random.longs(rows, 0, classes).toArray();
        if (margin != null) {
            Arrays.fill(bias, 0);
        }
        used = java.util.stream.IntStream.range(0, classes).toArray();
    }

    static double[] values(SplittableRandom random, int count) {
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = (float) (2 * random.nextDouble() - 1); // what float32 can hold
        }
        return values;
    }

    static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    /** Returns the gradient of the loss by some of its numbers. */
    double[] gradient(double[] of) {
        double h = 1e-6;
        double[] gradient = new double[of.length];
        DoubleSupplier value = this::loss;
        for (int i = 0; i < of.length; i++) {
            double kept = of[i];
            of[i] = kept + h;
            double above = value.getAsDouble();
            of[i] = kept - h;
            gradient[i] = (above - value.getAsDouble()) / (2 * h);
            of[i] = kept;
        }
        return gradient;
    }

    double loss() {
        double sum = 0;
        int counted = 0;
        for (int row = 0; row < rows; row++) {
            if (labels[row] != options.ignoreIndex()) {
                sum += loss(row);
                counted++;
            }
        }
        return sum / Math.max(1, counted);
    }

    private double loss(int row) {
        double sum = 0;
        double mean = 0;
        double own = Double.NaN;
        for (int k : used) {
            double logit = logit(row, k);
            sum += Math.exp(logit);
            mean += logit / used.length;
            if (k == labels[row]) {
                own = logit;
            }
        }
        double log = Math.log(sum);
        double alpha = options.labelSmoothing();
        return log - (1 - alpha) * own - alpha * mean + options.zLoss() * log * log;
    }

    private double logit(int row, int k) {
        double dot = 0;
        double xx = 0;
        double ww = 0;
        for (int j = 0; j < features; j++) {
            double a = x[row * features + j];
            double b = weight[k * features + j];
            dot += a * b;
            xx += a * a;
            ww += b * b;
        }
        if (margin == null) {
            return dot + bias[k];
        }
        double cosine = dot / Math.sqrt(xx * ww);
        if (k == labels[row]) {
            // angles beyond pi are not in this test
            double angle = margin.m1() * Math.acos(cosine) + margin.m2();
            cosine = Math.cos(angle) - margin.m3();
            if (angle > Math.PI) {
                throw new IllegalStateException("An angle of " + angle);
            }
        }
        return margin.scale() * cosine;
    }
}
