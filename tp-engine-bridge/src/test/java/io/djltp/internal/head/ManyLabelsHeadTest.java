package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.internal.head.OneVsAll.Kind;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.TestCases;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.function.DoubleSupplier;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** Losses of rows with several labels, softmax and one-vs-all, are what their definitions say. */
public class ManyLabelsHeadTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 29; // uneven over 2, 3 and 4 ranks
    private static final long SEED = 9;

    /** With a row without labels, and class 28 that is in none. */
    private static final long[][] LABELS = {
        {0, 3, 7, 27},
        {-1, -1, -1, -1},
        {5, -1, -1, -1},
        {3, 7, -1, -1},
        {1, 2, 3, 4},
        {21, 26, -1, -1}
    };

    private static final float[] WEIGHTS = new float[CLASSES];
    private static final float[] POSITIVES = new float[CLASSES];

    static {
        for (int k = 0; k < CLASSES; k++) {
            WEIGHTS[k] = 0.25f + k % 3;
            POSITIVES[k] = 1 + k % 5;
        }
    }

    /** A loss: a softmax, or one-vs-all. */
    private record Rule(LossOptions options, Kind kind, float[] positives) {

        static Rule softmax(float smoothing, float zLoss) {
            return new Rule(new LossOptions(-100, smoothing, zLoss), null, null);
        }

        static Rule of(Kind kind, float[] positives) {
            return new Rule(new LossOptions(-1, 0, 0), kind, positives);
        }

        Rule focused() {
            return new Rule(options.withFocusing(1.5f), kind, positives);
        }

        Rule weighted() {
            return new Rule(options.withClassWeights(WEIGHTS), kind, positives);
        }
    }

    private static final Rule[] RULES = {
        Rule.softmax(0, 0),
        Rule.softmax(0.2f, 0.03f),
        Rule.softmax(0, 0.01f).weighted(),
        Rule.softmax(0.2f, 0.03f).focused(),
        Rule.softmax(0, 0.01f).weighted().focused(),
        Rule.of(Kind.BINARY_CROSS_ENTROPY, null),
        Rule.of(Kind.BINARY_CROSS_ENTROPY, POSITIVES).weighted(),
        Rule.of(Kind.SQUARED_HINGE, null),
        Rule.of(Kind.SQUARED_HINGE, POSITIVES).weighted()
    };

    @DataProvider
    public Object[][] cases() {
        Cut[] cuts = {
            Cut.balanced(CLASSES, 1),
            Cut.balanced(CLASSES, 2),
            Cut.balanced(CLASSES, 3),
            Cut.ofLengths(18, 0, 10, 1),
        };
        return TestCases.product(cuts, RULES, new Float[] {1f, 0.4f}, new Long[] {3L, 8L});
    }

    /** In two passes that keep all or nothing, and a one-vs-all loss in one pass too. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsTheDefinition(Cut cut, Rule rule, float share, long chunk) throws Exception {
        for (float scale : chunk == 8 ? new float[] {1, 100} : new float[] {1}) { // of the logits
            HeadReference data = new HeadReference(7, 2, ROWS, FEATURES, CLASSES);
            Arrays.setAll(data.x, i -> (float) (data.x[i] * scale));
            double[] used = standing(share, rule.kind != null || chunk == 8);
            double loss = loss(data, rule, used);
            DoubleSupplier lossOf = () -> loss(data, rule, used);
            double[][] expected = {
                HeadReference.differences(data.x, lossOf),
                HeadReference.differences(data.weight, lossOf),
                HeadReference.differences(data.bias, lossOf)
            };
            for (boolean inLoss :
                    rule.kind == null ? new boolean[] {false} : new boolean[] {false, true}) {
                HeadOptions head =
                        new HeadOptions(share, SEED, null, Precision.FLOAT32, chunk == 8, inLoss);
                Step step = run(data, cut, rule, head, chunk);
                Assert.assertEquals(step.loss, loss, 1e-5 * loss, "loss");
                HeadStep.assertNear(step.ofFeatures, expected[0], "dX");
                HeadStep.assertNear(step.ofWeight, expected[1], "dW");
                HeadStep.assertNear(step.ofBias, expected[2], "db");
                Assert.assertEquals(
                        step.evaluated,
                        loss(data, rule, standing(1, true)),
                        1e-5 * step.evaluated,
                        "evaluation");
            }
        }
    }

    /** The loss of whole logits, which DJL's own trainer computes, is the same. */
    @Test(timeOut = 60_000)
    public void isThatOfWholeLogits() {
        HeadReference data = new HeadReference(7, 2, ROWS, FEATURES, CLASSES);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray bias = data.bias(manager, List.of(new ShardRange(0, CLASSES)));
            NDArray logits = data.x(manager).matMul(data.weight(manager).transpose()).add(bias);
            for (Rule rule : RULES) {
                if (rule.kind == null) {
                    ShardedCrossEntropy whole = new ShardedCrossEntropy(rule.options);
                    double loss = loss(data, rule, standing(1, true));
                    Cut all = Cut.ofLengths(CLASSES);
                    ShardedCrossEntropy.Result found =
                            whole.evaluate(logits, labels(manager), all, null, false);
                    Assert.assertEquals(
                            found.value().getFloat(), loss, 1e-5 * loss, rule.options + "");
                }
            }
        }
    }

    /** What a head has made of a batch. */
    private static final class Step {
        float loss;
        float evaluated;
        final float[] ofFeatures = new float[ROWS * FEATURES];
        final float[] ofWeight = new float[CLASSES * FEATURES];
        final float[] ofBias = new float[CLASSES];
    }

    private static Step run(HeadReference data, Cut cut, Rule rule, HeadOptions head, long chunk)
            throws Exception {
        Step step = new Step();
        long budget = chunk == 3 ? 4 * ROWS * 7 : 1 << 20; // nothing is kept
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    List<ShardRange> own = cut.getRanges(group.getRank());
                    NDArray w = data.weight(manager, own);
                    NDArray b = data.bias(manager, own);
                    NDArray before = w.duplicate();
                    NDArray ofBias = b.onesLike();
                    NDArray labels = labels(manager);
                    WeightUpdate update = HeadStep.rateOne();
                    try (ChunkedHead fused = new ChunkedHead(group, cut, budget, chunk, head)) {
                        NDArray x = data.x(manager);
                        OneVsAll loss =
                                rule.kind == null
                                        ? null
                                        : new OneVsAll(rule.kind, rule.options, rule.positives);
                        NDArray evaluated =
                                loss == null
                                        ? fused.evaluation().loss(x, w, b, labels, rule.options)
                                        : fused.evaluation().loss(x, w, b, labels, loss);
                        ChunkedHead.InLoss now =
                                head.isInLoss() ? new ChunkedHead.InLoss(update, ofBias) : null;
                        ChunkedHead.Result result =
                                loss == null
                                        ? fused.evaluate(x, w, b, labels, rule.options)
                                        : fused.evaluateOneVsAll(x, w, b, labels, loss, now);
                        if (!head.isInLoss()) {
                            Assert.assertEquals(w, before);
                            fused.update(w, b, ofBias, update, 1, null);
                        }
                        Assert.assertEquals(fused.getState().steps(), 1);
                        group.allReduce(result.gradient(), ReduceOp.SUM);
                        if (group.getRank() == 0) {
                            step.loss = result.value().getFloat();
                            step.evaluated = evaluated.getFloat();
                            HeadStep.put(result.gradient(), step.ofFeatures, null, 1);
                        }
                        HeadStep.put(before.sub(w), step.ofWeight, own, FEATURES);
                        HeadStep.put(ofBias, step.ofBias, own, 1);
                    }
                });
        return step;
    }

    private static NDArray labels(NDManager manager) {
        long[] all = Arrays.stream(LABELS).flatMapToLong(LongStream::of).toArray();
        return manager.create(all, new Shape(ROWS, LABELS[0].length));
    }

    /** Returns how many classes each class of a step stands for, 0 of those that are not drawn. */
    private static double[] standing(float share, boolean corrected) {
        double[] standing = new double[CLASSES];
        Arrays.fill(standing, 1);
        if (share == 1) {
            return standing;
        }
        Arrays.fill(standing, 0);
        long[] labels =
                Arrays.stream(LABELS)
                        .flatMapToLong(LongStream::of)
                        .filter(l -> l >= 0)
                        .sorted()
                        .toArray();
        ClassShard all = new ClassShard(Cut.ofLengths(CLASSES), null);
        long[] drawn = new ClassSampler(all, share, SEED).draw(0, labels);
        long ofBatch = LongStream.of(labels).distinct().count();
        double others = corrected ? (CLASSES - ofBatch) / (double) (drawn.length - ofBatch) : 1;
        LongStream.of(drawn).forEach(k -> standing[(int) k] = others);
        LongStream.of(labels).forEach(k -> standing[(int) k] = 1);
        return standing;
    }

    private static double loss(HeadReference data, Rule rule, double[] standing) {
        double sum = 0;
        double count = 0;
        for (int row = 0; row < ROWS; row++) {
            double[] z = data.logits(row, true);
            long[] labels = LongStream.of(LABELS[row]).filter(label -> label >= 0).toArray();
            sum +=
                    rule.kind == null
                            ? softmax(z, labels, rule.options, standing)
                            : oneVsAll(z, labels, rule, standing);
            double weight =
                    LongStream.of(labels).mapToDouble(rule.options::weightOf).average().orElse(0);
            count += rule.kind == null ? weight : 1;
        }
        return sum / count;
    }

    private static double softmax(
            double[] z, long[] labels, LossOptions options, double[] standing) {
        int[] used = IntStream.range(0, CLASSES).filter(k -> standing[k] > 0).toArray();
        double[] logits =
                Arrays.stream(used).mapToDouble(k -> z[k] + Math.log(standing[k])).toArray();
        double log = HeadReference.logSumExp(logits);
        double alpha = options.labelSmoothing();
        double mean = DoubleStream.of(logits).average().getAsDouble();
        double weights = LongStream.of(labels).mapToDouble(options::weightOf).sum();
        double entropy =
                LongStream.of(labels)
                        .mapToDouble(y -> options.weightOf(y) / weights * (log - z[(int) y]))
                        .sum();
        double focus = Math.pow(1 - Math.exp(-entropy), options.focusing());
        return LongStream.of(labels)
                .mapToDouble(
                        y ->
                                options.weightOf(y)
                                                * ((1 - alpha) * focus * (log - z[(int) y])
                                                        + options.zLoss() * log * log)
                                        + alpha * (log - mean))
                .average()
                .orElse(0);
    }

    private static double oneVsAll(double[] z, long[] labels, Rule rule, double[] standing) {
        double sum = 0;
        for (int k = 0; k < CLASSES; k++) {
            int each = k;
            boolean positive = LongStream.of(labels).anyMatch(label -> label == each);
            double weight = rule.options.weightOf(k) * standing[k];
            weight *= positive && rule.positives != null ? rule.positives[k] : 1;
            double m = positive ? -z[k] : z[k];
            double loss =
                    rule.kind == Kind.SQUARED_HINGE
                            ? Math.pow(Math.max(0, 1 + m), 2)
                            : m > 30 ? m : Math.log1p(Math.exp(m));
            sum += weight * loss;
        }
        return sum;
    }
}
