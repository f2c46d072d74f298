package io.djltp.head;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;

import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.RowGradient;
import io.djltp.internal.update.WeightUpdate;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
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
        final FusedReference reference;
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
            reference = new FusedReference(rows, features, classes);
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
                float[] values, SplittableRandom random, double spread, double offset) {
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) (offset + spread * (2 * random.nextDouble() - 1));
            }
        }

        NDArray features(NDManager manager) {
            return manager.create(reference.x, new Shape(reference.rows, reference.features));
        }

        NDArray weight(NDManager manager) {
            Shape shape = new Shape(reference.classes, reference.features);
            return manager.create(reference.weight, shape);
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
                double[] logits = logits(i);
                double sum = Arrays.stream(logits).map(Math::exp).sum();
                for (int k = 0; k < logits.length; k++) {
                    double share = Math.exp(logits[k]) / sum / reference.rows;
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

        private double[] logits(int row) {
            double[] logits = new double[reference.classes];
            for (int k = 0; k < logits.length; k++) {
                logits[k] = biased ? reference.bias[k] : 0;
                for (int j = 0; j < reference.features; j++) {
                    double x = reference.x[row * reference.features + j];
                    logits[k] += x * reference.weight[k * reference.features + j];
                }
            }
            return logits;
        }
    }

    /** The gradients of features, weight and bias; that of the bias may be missing. */
    private record Gradients(float[] features, float[] weight, float[] bias) {

        double[] errors(FusedReference reference) {
            return new double[] {
                error(features, reference.featureGradient),
                error(weight, reference.weightGradient),
                bias == null ? 0 : error(bias, reference.biasGradient)
            };
        }

        private static double error(float[] actual, double[] expected) {
            double error = 0;
            for (int i = 0; i < actual.length; i++) {
                error = Math.max(error, Math.abs(actual[i] - expected[i]));
            }
            return error;
        }
    }

    /**
     * Keeps the gradient as it is: to take it from the weight would cost the digits in question.
     */
    private static final class Kept extends WeightUpdate {

        private final Tensor gradient;

        Kept(NDArray target) {
            super(Settings.DEFAULT);
            gradient = TensorView.of(target).tensor();
        }

        @Override
        public void prepare(long classes, long features, TensorOptions options) {
            // the target is there
        }

        @Override
        public void apply(RowGradient chunk) {
            chunk.rowsOf(gradient, 0).copy_(chunk.gradient(1));
        }
    }

    @DataProvider
    public Object[][] smoothing() {
        return new Object[][] {{0f}, {0.1f}, {0.5f}, {1f}};
    }

    @Test(dataProvider = "smoothing", timeOut = 60_000)
    public void losesNoMoreThanAutogradInFloat32(float alpha) throws Exception {
        List<Case> cases = new ArrayList<>();
        for (int i = 0; i < CASES; i++) {
            cases.add(new Case(i, alpha));
        }
        List<Gradients> stock = stock(cases);
        List<String> lost = new ArrayList<>();
        for (int ranks = 1; ranks <= 3; ranks++) {
            List<Gradients> fused = fused(cases, ranks);
            for (int i = 0; i < CASES; i++) {
                if (cases.get(i).ranks == ranks) {
                    compare(cases.get(i), fused.get(i), stock.get(i), lost);
                }
            }
        }
        Assert.assertEquals(lost.size(), 0, String.join("\n", lost));
    }

    private static void compare(Case c, Gradients fused, Gradients stock, List<String> lost) {
        double[] actual = fused.errors(c.reference);
        double[] expected = stock.errors(c.reference);
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
    private static List<Gradients> stock(List<Case> cases) throws Exception {
        List<Gradients> all = new ArrayList<>();
        RankThreads.run(
                1,
                (group, manager) -> {
                    for (Case c : cases) {
                        try (NDManager scope = manager.newSubManager()) {
                            all.add(stock(c, scope));
                        }
                    }
                });
        return all;
    }

    private static Gradients stock(Case c, NDManager manager) {
        NDArray x = c.features(manager);
        NDArray w = c.weight(manager);
        NDArray b = manager.create(c.reference.bias);
        NDArray labels = manager.create(c.reference.labels);
        float alpha = c.options.labelSmoothing();
        int classes = c.reference.classes;
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
        return new Gradients(
                x.getGradient().toFloatArray(),
                w.getGradient().toFloatArray(),
                c.biased ? b.getGradient().toFloatArray() : null);
    }

    /** Returns the gradients of the fused head, of the cases of so many ranks. */
    private static List<Gradients> fused(List<Case> cases, int ranks) throws Exception {
        List<Gradients> all = new ArrayList<>();
        for (Case c : cases) {
            FusedReference reference = c.reference;
            all.add(
                    new Gradients(
                            new float[reference.x.length],
                            new float[reference.weight.length],
                            c.biased ? new float[reference.classes] : null));
        }
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    for (int i = 0; i < cases.size(); i++) {
                        Case c = cases.get(i);
                        if (c.ranks != ranks) {
                            continue;
                        }
                        int classes = c.reference.classes;
                        ShardRange range = Cut.balanced(classes, ranks).getRange(group.getRank());
                        Autograd.setThreads(c.lanes);
                        try (NDManager scope = manager.newSubManager();
                                FusedSoftmaxHead head =
                                        new FusedSoftmaxHead(
                                                group,
                                                Cut.balanced(classes, ranks),
                                                c.budget,
                                                c.chunk,
                                                HeadOptions.DEFAULT)) {
                            NDArray x = c.features(scope);
                            String rows = range.start() + ":" + range.end();
                            NDArray w = c.weight(scope).get(rows).duplicate();
                            NDArray b = scope.create(c.reference.bias).get(rows).duplicate();
                            b = c.biased ? b : null;
                            NDArray labels = scope.create(c.reference.labels);
                            NDArray ofX = head.evaluate(x, w, b, labels, c.options).gradient();
                            NDArray ofW = scope.zeros(w.getShape());
                            NDArray ofB = c.biased ? scope.zeros(b.getShape()) : null;
                            try (Kept update = new Kept(ofW)) {
                                head.update(w, b, ofB, update, 1, null);
                            }
                            group.allReduce(ofX, ReduceOp.SUM);
                            Gradients target = all.get(i);
                            int first = (int) range.start();
                            put(ofW, target.weight, first * c.reference.features);
                            if (c.biased) {
                                put(ofB, target.bias, first);
                            }
                            if (group.getRank() == 0) {
                                put(ofX, target.features, 0);
                            }
                        }
                    }
                });
        return all;
    }

    private static void put(NDArray from, float[] to, int start) {
        float[] values = from.toFloatArray();
        System.arraycopy(values, 0, to, start, values.length);
    }
}
