package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.function.DoubleSupplier;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * A linear layer with a softmax cross entropy in float64 and whole: its loss and gradients, or,
 * over some of its classes or with a margin, its loss by definition and gradients by finite
 * differences. Its numbers are such that float32 has.
 */
final class HeadReference {

    final int rows;
    final int features;
    final int classes;
    final double[] x;
    final double[] weight;
    final double[] bias;
    final long[] labels;
    Margin margin;
    int[] used; // the classes of the softmax

    double loss;
    double[] ofFeatures;
    double[] ofWeight;
    double[] ofBias;

    HeadReference(int rows, int features, int classes) {
        this(7, 2, rows, features, classes);
    }

    HeadReference(long seed, double scale, int rows, int features, int classes) {
        this.rows = rows;
        this.features = features;
        this.classes = classes;
        SplittableRandom random = new SplittableRandom(seed);
        x = values(random, rows * features, scale);
        weight = values(random, classes * features, 1);
        bias = values(random, classes, 1);
        labels = random.longs(rows, 0, classes).toArray();
        used = IntStream.range(0, classes).toArray();
    }

    /** Returns cuts of classes: balanced, with an empty shard, and of several ranges a rank. */
    static Cut[] cuts(int classes) {
        int fifth = classes / 5;
        int rest = 2 * fifth + 2;
        int half = (classes - rest) / 2;
        Cut ranges =
                Cut.of(
                        classes,
                        2,
                        rank ->
                                List.of(
                                        new ShardRange((long) rank * fifth, fifth),
                                        new ShardRange(2L * fifth + rank, 1),
                                        rank == 0
                                                ? new ShardRange(rest, half)
                                                : new ShardRange(
                                                        rest + half, classes - rest - half)));
        return new Cut[] {
            Cut.balanced(classes, 1),
            Cut.balanced(classes, 2),
            Cut.balanced(classes, 3),
            Cut.balanced(classes, 4),
            Cut.ofLengths(classes - 6, 0, 5, 1),
            ranges
        };
    }

    static double[] values(SplittableRandom random, int count, double scale) {
        double[] values = new double[count];
        Arrays.setAll(values, i -> (float) (scale * (2 * random.nextDouble() - 1)));
        return values;
    }

    /** Gives two rows one class, and a row the class that some losses ignore. */
    HeadReference withSpecialLabels() {
        labels[2] = 3;
        labels[4] = labels[5];
        return this;
    }

    NDArray x(NDManager manager) {
        return array(manager, x, features);
    }

    NDArray labels(NDManager manager) {
        return manager.create(labels);
    }

    /** Returns the rows of the weight of some classes. */
    NDArray weight(NDManager manager, List<ShardRange> ranges) {
        return array(manager, part(weight, ranges, features), features);
    }

    NDArray weight(NDManager manager) {
        return array(manager, weight, features);
    }

    NDArray bias(NDManager manager, List<ShardRange> ranges) {
        return array(manager, part(bias, ranges, 1), 1).flatten();
    }

    private static NDArray array(NDManager manager, double[] values, int columns) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return manager.create(floats, new Shape(floats.length / columns, columns));
    }

    /** Returns what some classes have of something. */
    static double[] part(double[] all, List<ShardRange> ranges, int columns) {
        return places(ranges, columns).mapToDouble(i -> all[i]).toArray();
    }

    /** Returns where in something what some classes have of it is. */
    static IntStream places(List<ShardRange> ranges, int columns) {
        return ranges.stream()
                .flatMapToInt(
                        range ->
                                IntStream.range(
                                        (int) range.start() * columns,
                                        (int) range.end() * columns));
    }

    /** Computes loss and gradients over all classes and without a margin. */
    HeadReference compute(LossOptions options, boolean biased) {
        for (double[] values : List.of(x, weight, bias)) {
            Arrays.setAll(values, i -> (float) values[i]);
        }
        loss = 0;
        ofFeatures = new double[x.length];
        ofWeight = new double[weight.length];
        ofBias = new double[classes];
        for (int i = 0; i < rows; i++) {
            if (labels[i] != options.ignoreIndex()) {
                addRow(i, options, biased, 1.0 / counted(options));
            }
        }
        return this;
    }

    long counted(LossOptions options) {
        return LongStream.of(labels).filter(label -> label != options.ignoreIndex()).count();
    }

    private void addRow(int row, LossOptions options, boolean biased, double share) {
        double[] logits = logits(row, biased);
        double log = logSumExp(logits);
        double mean = Arrays.stream(logits).sum() / classes;
        double alpha = options.labelSmoothing();
        int label = (int) labels[row];
        loss += share * ((1 - alpha) * (log - logits[label]) + alpha * (log - mean));
        loss += share * options.zLoss() * log * log;
        for (int k = 0; k < classes; k++) {
            double gradient = Math.exp(logits[k] - log) * (1 + 2 * options.zLoss() * log);
            gradient -= (k == label ? 1 - alpha : 0) + alpha / classes;
            ofBias[k] += share * gradient;
            for (int j = 0; j < features; j++) {
                ofFeatures[row * features + j] += share * gradient * weight[k * features + j];
                ofWeight[k * features + j] += share * gradient * x[row * features + j];
            }
        }
    }

    /** Returns the logits of a row without a margin. */
    double[] logits(int row, boolean biased) {
        return IntStream.range(0, classes)
                .mapToDouble(k -> dot(row, k) + (biased ? bias[k] : 0))
                .toArray();
    }

    private double dot(int row, int k) {
        double dot = 0;
        for (int j = 0; j < features; j++) {
            dot += x[row * features + j] * weight[k * features + j];
        }
        return dot;
    }

    static double logSumExp(double[] logits) {
        double largest = Arrays.stream(logits).max().getAsDouble();
        return largest + Math.log(Arrays.stream(logits).map(z -> Math.exp(z - largest)).sum());
    }

    /** Returns the gradient of the loss by some of its numbers. */
    double[] differences(double[] of, LossOptions options) {
        return differences(of, () -> loss(options));
    }

    /** Returns the gradient of a loss by numbers that it is computed from. */
    static double[] differences(double[] of, DoubleSupplier loss) {
        double h = 1e-6;
        double[] gradient = new double[of.length];
        for (int i = 0; i < of.length; i++) {
            double kept = of[i];
            of[i] = kept + h;
            double above = loss.getAsDouble();
            of[i] = kept - h;
            gradient[i] = (above - loss.getAsDouble()) / (2 * h);
            of[i] = kept;
        }
        return gradient;
    }

    /** Returns the loss by its definition, over the classes that are used and with the margin. */
    double loss(LossOptions options) {
        return IntStream.range(0, rows)
                        .filter(row -> labels[row] != options.ignoreIndex())
                        .mapToDouble(row -> loss(row, options))
                        .sum()
                / Math.max(1, counted(options));
    }

    private double loss(int row, LossOptions options) {
        double[] logits = Arrays.stream(used).mapToDouble(k -> logit(row, k)).toArray();
        double log = logSumExp(logits);
        double mean = Arrays.stream(logits).average().getAsDouble();
        double own = logit(row, (int) labels[row]);
        double alpha = options.labelSmoothing();
        double focus = Math.pow(1 - Math.exp(own - log), options.focusing());
        double smoothed = (1 - alpha) * focus * (log - own) + alpha * (log - mean);
        return smoothed + options.zLoss() * log * log;
    }

    private double logit(int row, int k) {
        if (margin == null) {
            return dot(row, k) + bias[k];
        }
        double cosine =
                dot(row, k) / Math.sqrt(square(x, row * features) * square(weight, k * features));
        if (k == labels[row]) {
            double angle = margin.m1() * Math.acos(cosine) + margin.m2();
            cosine = Math.cos(angle) - margin.m3();
            if (angle > Math.PI) { // these are not in this test
                throw new IllegalStateException("An angle of " + angle);
            }
        }
        return margin.scale() * cosine;
    }

    private double square(double[] of, int start) {
        return Arrays.stream(of, start, start + features).map(each -> each * each).sum();
    }
}
