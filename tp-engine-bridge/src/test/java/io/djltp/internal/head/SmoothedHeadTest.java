package io.djltp.internal.head;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.GradientCollector;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.Stream;

/**
 * With label smoothing, the gradients of a fused head hold as many digits as those of DJL's
 * autograd in float32. Where the softmax is nearly uniform they are small differences \(p -
 * \alpha/n\), whose digits are gone if the two parts are first multiplied and summed.
 */
public class SmoothedHeadTest {

    private static final String[] NAMES = {"the features", "the weight", "the bias"};
    private static final int CASES = 100; // for each smoothing
    private static final double MULTIPLE = 8;
    private static final double ROUNDOFF = Math.ulp(1f) / 2;

    /** A head of random size whose softmax is more or less uniform. */
    private static final class Case {

        final int ranks;
        final int lanes;
        final boolean biased;
        final long chunk;
        final long budget;
        final LossOptions options;
        final HeadReference reference;
        private final String text;

        Case(int number, float alpha) {
            SplittableRandom random = new SplittableRandom(1000 * number + (int) (10 * alpha));
            boolean large = number % 20 == 19; // many summands that have the offset in common
            int classes = 2 + (number % 4 == 0 ? 0 : random.nextInt(large ? 3999 : 199));
            ranks = Math.min(classes, 1 + number % 3);
            lanes = 1 + random.nextInt(2);
            biased = random.nextBoolean();
            int rows = 1 + random.nextInt(!large && random.nextInt(3) == 0 ? 300 : 30);
            int features = 1 + random.nextInt(12);
            chunk = 1 + random.nextInt(classes);
            budget = (1 + random.nextInt(4)) * chunk * (rows + 1) * Float.BYTES;
            options = new LossOptions(-100, alpha, 0);
            reference = new HeadReference(rows, features, classes);
            double spread = Math.pow(10, -(large ? 4 : random.nextInt(5)));
            double offset = large ? 5 : random.nextBoolean() ? 0 : random.nextInt(6);
            double above = random.nextInt(4) == 0 ? 100 : 0; // more than plain exponentials can
            fill(reference.x, random, 1, random.nextInt(2));
            fill(reference.weight, random, spread, offset);
            fill(reference.bias, random, spread, above);
            float ahead = random.nextInt(4) == 0 ? 6 : 0; // the first class, of the first chunk
            reference.bias[0] += ahead;
            for (int i = 0; i < rows; i++) {
                reference.labels[i] = random.nextInt(classes);
            }
            reference.compute(options, biased);
            text =
                    String.format(
                            "case %d: %d ranks, %d lanes, %d rows, %d features, %d classes in"
                                    + " chunks of %d, spread %g, offset %g, bias %s, the"
                                    + " first class %g ahead",
                            number,
                            ranks,
                            lanes,
                            rows,
                            features,
                            classes,
                            chunk,
                            spread,
                            offset,
                            biased ? above : "none",
                            biased ? ahead : 0);
        }

        private static void fill(
                double[] values, SplittableRandom random, double spread, double offset) {
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) (offset + spread * (2 * random.nextDouble() - 1));
            }
        }

        /**
         * Returns what the roundings of the logits and of the probabilities come to in the
         * gradients of features, weight and bias if they are independent of each other: no head in
         * float32 can be trusted to do better, though by luck autograd does on some cases.
         *
         * <p>Without smoothing a fused head subtracts the labels from the sums of probabilities,
         * and the additions to these are rounded too: each to the size of the labels' sum, where
         * the difference is small.
         */
        double[] roundings() {
            double[] ofFeatures = new double[reference.x.length];
            double[] ofWeight = new double[reference.weight.length];
            double[] ofBias = new double[reference.classes];
            for (int i = 0; i < reference.rows; i++) {
                double[] logits = reference.logits(i, biased);
                double log = HeadReference.logSumExp(logits);
                for (int k = 0; k < logits.length; k++) {
                    double share = Math.exp(logits[k] - log) / reference.rows;
                    double rounding = ROUNDOFF * (1 + Math.abs(logits[k])) * share;
                    ofBias[k] += rounding * rounding;
                    for (int j = 0; j < reference.features; j++) {
                        int x = i * reference.features + j;
                        int w = k * reference.features + j;
                        ofFeatures[x] += Math.pow(rounding * reference.weight[w], 2);
                        ofWeight[w] += Math.pow(rounding * reference.x[x], 2);
                    }
                }
            }
            if (options.labelSmoothing() == 0) {
                addSums(ofWeight, ofBias);
            }
            return Stream.of(ofFeatures, ofWeight, ofBias)
                    .mapToDouble(squares -> Math.sqrt(Arrays.stream(squares).max().getAsDouble()))
                    .toArray();
        }

        private void addSums(double[] ofWeight, double[] ofBias) {
            double[] weightSums = new double[ofWeight.length];
            double[] biasSums = new double[ofBias.length];
            for (int i = 0; i < reference.rows; i++) {
                int label = (int) reference.labels[i];
                biasSums[label] += 1.0 / reference.rows;
                for (int j = 0; j < reference.features; j++) {
                    double x = reference.x[i * reference.features + j];
                    weightSums[label * reference.features + j] += Math.abs(x) / reference.rows;
                }
            }
            for (int i = 0; i < ofWeight.length; i++) {
                ofWeight[i] += reference.rows * Math.pow(ROUNDOFF * weightSums[i], 2);
            }
            for (int i = 0; i < ofBias.length; i++) {
                ofBias[i] += reference.rows * Math.pow(ROUNDOFF * biasSums[i], 2);
            }
        }
    }

    /**
     * Returns the errors of the gradients of features, weight and bias; the last may be missing.
     */
    private static double[] errors(HeadReference reference, float[]... gradients) {
        return new double[] {
            error(gradients[0], reference.ofFeatures),
            error(gradients[1], reference.ofWeight),
            gradients[2] == null ? 0 : error(gradients[2], reference.ofBias)
        };
    }

    private static double error(float[] actual, double[] expected) {
        double error = 0;
        for (int i = 0; i < actual.length; i++) {
            error = Math.max(error, Math.abs(actual[i] - expected[i]));
        }
        return error;
    }

    @DataProvider
    public Object[][] smoothing() {
        return new Object[][] {{0f}, {0.1f}, {0.5f}, {1f}};
    }

    @Test(dataProvider = "smoothing", timeOut = 60_000)
    public void losesNoMoreThanAutogradInFloat32(float alpha) throws Exception {
        List<String> lost = new ArrayList<>();
        for (int i = 0; i < CASES; i++) {
            Case c = new Case(i, alpha);
            int classes = c.reference.classes;
            HeadStep.Way way =
                    new HeadStep.Way(
                            Cut.balanced(classes, c.ranks), c.budget, c.chunk, c.lanes, c.biased);
            HeadStep step = HeadStep.summed(c.reference, way, HeadStep.FLOAT32, c.options, 1);
            float[] ofBias = c.biased ? step.ofBias : null;
            double[] fused = errors(c.reference, step.ofFeatures, step.ofWeight, ofBias);
            compare(c, fused, stock(c), lost);
        }
        Assert.assertEquals(lost.size(), 0, String.join("\n", lost));
    }

    private static void compare(Case c, double[] actual, double[] expected, List<String> lost) {
        double[] roundings = c.roundings();
        for (int i = 0; i < actual.length; i++) {
            double limit = MULTIPLE * Math.max(expected[i], roundings[i]);
            if (!(actual[i] <= limit)) {
                String text = "%s, of %s: an error of %g, where autograd has %g and roundings %g";
                lost.add(
                        String.format(
                                text, c.text, NAMES[i], actual[i], expected[i], roundings[i]));
            }
        }
    }

    /** Linear layer, log-softmax and the smoothed labels by operations of DJL. */
    private static double[] stock(Case c) throws Exception {
        double[][] errors = new double[1][];
        RankThreads.run(1, (group, manager) -> errors[0] = stock(c, manager));
        return errors[0];
    }

    private static double[] stock(Case c, NDManager manager) {
        NDArray x = c.reference.x(manager);
        NDArray w = c.reference.weight(manager);
        int classes = c.reference.classes;
        NDArray b = c.reference.bias(manager, List.of(new ShardRange(0, classes)));
        NDArray labels = c.reference.labels(manager);
        float alpha = c.options.labelSmoothing();
        NDArray wanted = labels.oneHot(classes).mul(1 - alpha).add(alpha / classes);
        for (NDArray parameter : new NDArray[] {x, w, b}) {
            parameter.setRequiresGradient(true);
        }
        try (GradientCollector collector = Engine.getInstance().newGradientCollector()) {
            NDArray logits = x.matMul(w.transpose());
            logits = c.biased ? logits.add(b) : logits;
            NDArray loss = logits.logSoftmax(1).mul(wanted).sum(new int[] {1}).mean().neg();
            collector.backward(loss);
        }
        return errors(
                c.reference,
                x.getGradient().toFloatArray(),
                w.getGradient().toFloatArray(),
                c.biased ? b.getGradient().toFloatArray() : null);
    }
}
