package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.evaluator.Evaluator;

import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.head.ClassLabels;
import io.djltp.internal.loss.ShardedPredictions;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.HostReads;

import org.jspecify.annotations.Nullable;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * How well the k best classes of each row agree with its labels, of which it may have many: P@k,
 * R@k, nDCG@k, PSP@k and F1. Classes may be cut over the ranks; their logits are not gathered.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], one class a row, or [x1, ..., xn, width], several, where -1 fills up
 *   <li>predictions: as {@link VocabParallelTopK} takes them. Of equal logits that of the class
 *       with the lower number comes first
 * </ul>
 *
 * <p>Rows without a label, or with the label -100 where there is one a row, do not count, as in
 * pyxclib's {@code Metrics} with {@code remove_invalid=True}. The value is NaN before the first row
 * that counts. {@link #evaluate} returns the value of each row by itself.
 *
 * <p>Evaluators of the same predictions of a trainer share one top-k, and with it one all-gather:
 * that of the largest k that the thread has asked for. If there are fewer classes than k, the
 * missing ones are no labels.
 *
 * <p>As {@code xclib.evaluation.xc_metrics} of <a
 * href="https://github.com/kunaldahiya/pyxclib">pyxclib</a>.
 */
public final class VocabParallelRanking extends Evaluator {

    private static final ThreadLocal<Best> LAST = new ThreadLocal<>();

    private final int k;
    private final float threshold; // of the logits
    private final boolean byClass;
    private final Function<Row, Ratio> metric;
    private final Map<String, Sums> accumulators = new ConcurrentHashMap<>();

    private VocabParallelRanking(
            String name, int k, float threshold, boolean byClass, Function<Row, Ratio> metric) {
        super(name + "@" + k);
        Errors.check(k >= 1, "The k of %s must be 1 or more: %s", name, k);
        Errors.check(!Float.isNaN(threshold), "The threshold of %s is NaN", name);
        this.k = k;
        this.threshold = threshold;
        this.byClass = byClass;
        this.metric = metric;
    }

    private static VocabParallelRanking of(String name, int k, Function<Row, Ratio> metric) {
        return new VocabParallelRanking(name, k, Float.NEGATIVE_INFINITY, false, metric);
    }

    /**
     * Returns the precision: how many of the k best classes are labels, divided by k.
     *
     * @param k how many classes count, 1 or more
     * @return the evaluator, "P@k" with k as a number
     */
    public static VocabParallelRanking precision(int k) {
        return of("P", k, row -> new Ratio((double) row.countHits() / k, 1));
    }

    /**
     * Returns the recall: how many of the labels are among the k best classes, divided by the
     * number of labels.
     *
     * @param k how many classes count, 1 or more
     * @return the evaluator, "R@k"
     */
    public static VocabParallelRanking recall(int k) {
        return of("R", k, row -> new Ratio((double) row.countHits() / row.labels.length, 1));
    }

    /**
     * Returns the normalized discounted cumulative gain: the sum of {@code 1 / log2(1 + place)}
     * over the labels among the k best classes, divided by the largest that there can be.
     *
     * @param k how many classes count, 1 or more
     * @return the evaluator, "nDCG@k"
     */
    public static VocabParallelRanking ndcg(int k) {
        return of(
                "nDCG",
                k,
                row -> {
                    double gain = row.hits().mapToDouble(VocabParallelRanking::gain).sum();
                    int most = Math.min(k, row.labels.length);
                    double best =
                            IntStream.range(0, most).mapToDouble(VocabParallelRanking::gain).sum();
                    return new Ratio(gain / best, 1);
                });
    }

    private static double gain(int place) {
        return Math.log(2) / Math.log(place + 2);
    }

    /**
     * Returns the propensity-scored precision, in which rare classes count more: the sum of the
     * inverse propensities of the labels among the k best classes, over all rows, divided by the
     * largest that there can be.
     *
     * @param k how many classes count, 1 or more
     * @param inversePropensities of each class, such as {@link #inversePropensities}
     * @return the evaluator, "PSP@k"
     */
    public static VocabParallelRanking propensityPrecision(int k, float[] inversePropensities) {
        return of(
                "PSP",
                k,
                row -> {
                    double[] ofLabels =
                            LongStream.of(row.labels)
                                    .mapToDouble(label -> propensity(inversePropensities, label))
                                    .sorted()
                                    .toArray();
                    int from = Math.max(0, ofLabels.length - k);
                    double best = Arrays.stream(ofLabels, from, ofLabels.length).sum();
                    double found =
                            row.hits()
                                    .mapToDouble(i -> propensity(inversePropensities, row.best[i]))
                                    .sum();
                    return new Ratio(found, best);
                });
    }

    private static double propensity(float[] inverse, long label) {
        if (label >= inverse.length) {
            throw Errors.argument(
                    "A label is the class %s, but there are inverse propensities of %s classes:"
                            + " give one of each class",
                    label, inverse.length);
        }
        return inverse[(int) label];
    }

    /**
     * Returns the inverse propensities of classes, by how often they occur in the training data:
     * {@code 1 + (log(rows) - 1) (b + 1)^a / (count + b)^a}.
     *
     * <p>After Jain et al. (2016), <a href="https://doi.org/10.1145/2939672.2939756">Extreme
     * Multi-label Loss Functions</a>, who take a = 0.55, b = 1.5, but 0.5 and 0.4 for Wikipedia,
     * and 0.6 and 2.6 for Amazon.
     *
     * @param counts of each class, how many rows have it as a label
     * @param rows the number of rows
     * @param a the exponent
     * @param b what is added to the counts, above 0
     * @return the inverse propensity of each class
     */
    public static float[] inversePropensities(long[] counts, long rows, double a, double b) {
        Errors.check(
                rows > 0 && a >= 0 && b > 0,
                "Propensities need rows > 0, a >= 0 and b > 0, not %s, %s and %s",
                rows,
                a,
                b);
        double c = (Math.log(rows) - 1) * Math.pow(b + 1, a);
        float[] inverse = new float[counts.length];
        for (int i = 0; i < inverse.length; i++) {
            inverse[i] = (float) (1 + c * Math.pow(counts[i] + b, -a));
        }
        return inverse;
    }

    /**
     * Returns the micro F1: twice the number of predicted labels of all rows, divided by the number
     * of predicted classes and that of labels.
     *
     * @param k the most classes that are predicted of a row, 1 or more
     * @param threshold the logit above which one of the k best classes is predicted: 0 is a
     *     probability of 0.5 after a sigmoid, and negative infinity predicts all k
     * @return the evaluator, "microF1@k"
     */
    public static VocabParallelRanking microF1(int k, float threshold) {
        return new VocabParallelRanking("microF1", k, threshold, false, Row::f1);
    }

    /**
     * Returns the macro F1: the mean of the F1 of each class that is a label of a row or predicted.
     *
     * @param k the most classes that are predicted of a row, 1 or more
     * @param threshold the logit above which one of the k best classes is predicted
     * @return the evaluator, "macroF1@k"
     */
    public static VocabParallelRanking macroF1(int k, float threshold) {
        return new VocabParallelRanking("macroF1", k, threshold, true, Row::f1);
    }

    /**
     * {@inheritDoc}
     *
     * @return the value of each row, [rows], NaN for one without a label
     */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        List<@Nullable Row> rows = rows(labels, predictions);
        float[] values = new float[rows.size()];
        for (int i = 0; i < values.length; i++) {
            Row row = rows.get(i);
            values[i] = row == null ? Float.NaN : (float) metric.apply(row).value();
        }
        return labels.head().getManager().create(values);
    }

    /** {@inheritDoc} */
    @Override
    public void addAccumulator(String key) {
        accumulators.put(key, new Sums());
    }

    /** {@inheritDoc} */
    @Override
    public void resetAccumulator(String key) {
        accumulators.computeIfPresent(key, (name, sums) -> new Sums());
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if a label is no class
     * @throws ArithmeticException if a logit is NaN
     */
    @Override
    public void updateAccumulator(String key, NDList labels, NDList predictions) {
        updateAccumulators(new String[] {key}, labels, predictions);
    }

    /** {@inheritDoc} */
    @Override
    public void updateAccumulators(String[] keys, NDList labels, NDList predictions) {
        List<@Nullable Row> rows = rows(labels, predictions);
        for (String key : keys) {
            add(sums(key), rows);
        }
    }

    /**
     * Adds rows whose best classes are known, such as those of a {@link
     * io.djltp.search.ClassSearch}.
     *
     * @param key the accumulator
     * @param labels the labels, as for {@link #updateAccumulators}
     * @param best the k best classes of each row, or more. A logit of negative infinity ends those
     *     of a row that has fewer
     */
    public void updateAccumulator(String key, NDList labels, TopClasses best) {
        int all = (int) best.classes().getShape().get(best.classes().getShape().dimension() - 1);
        Best known = Best.of(null, all, best);
        add(sums(key), rows(labels, best.classes().getShape(), Long.MAX_VALUE, known));
    }

    private void add(Sums sums, List<@Nullable Row> rows) {
        for (Row row : rows) {
            if (row != null && byClass) {
                sums.addByClass(row);
            } else if (row != null) {
                Ratio ratio = metric.apply(row);
                sums.above += ratio.above;
                sums.below += ratio.below;
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public float getAccumulator(String key) {
        Sums sums = sums(key);
        return (float) (byClass ? sums.meanOfClasses() : sums.above / sums.below);
    }

    private Sums sums(String key) {
        Sums sums = accumulators.get(key);
        if (sums == null) {
            throw Errors.argument("%s has no accumulator %s: call addAccumulator", getName(), key);
        }
        return sums;
    }

    /** Returns the rows of a batch, {@code null} for those that do not count. */
    private List<@Nullable Row> rows(NDList labels, NDList predictions) {
        Shape shape = predictions.singletonOrThrow().getShape();
        boolean whole = ParallelContext.current() == null; // a rank sees a slice of the classes
        long classes = whole ? shape.get(shape.dimension() - 1) : Long.MAX_VALUE;
        Best best = best(predictions, (int) Math.min(k, classes), classes);
        return rows(labels, shape, classes, best);
    }

    private List<@Nullable Row> rows(NDList labels, Shape shape, long classes, Best best) {
        NDArray given = labels.singletonOrThrow();
        boolean many = given.getShape().dimension() == shape.dimension();
        long none = many ? -1 : LossOptions.DEFAULT_IGNORE_INDEX;
        long[] ids = ClassLabels.read(given, classes, none);
        int count = best.classes.length / best.k;
        int width = many ? (int) given.getShape().get(shape.dimension() - 1) : 1;
        Errors.check(
                ids.length == count * width,
                "The labels %s do not fit the predictions %s: they need a row for each of their %s",
                given.getShape(),
                shape,
                count);
        List<@Nullable Row> rows = new ArrayList<>();
        for (int row = 0; row < count; row++) {
            long[] own =
                    Arrays.stream(ids, row * width, (row + 1) * width)
                            .filter(id -> id != none)
                            .toArray();
            int from = row * best.k;
            int to = from;
            while (to < from + Math.min(k, best.k) && best.logits[to] > threshold) {
                to++;
            }
            long[] predicted = Arrays.copyOfRange(best.classes, from, to);
            rows.add(own.length == 0 ? null : new Row(own, predicted));
        }
        return rows;
    }

    /** Returns at least the k best classes, those found before if they are of these predictions. */
    private static Best best(NDList predictions, int k, long classes) {
        ShardedPredictions sharded = ShardedPredictions.of(predictions);
        Best last = LAST.get();
        if (sharded == null || last == null) {
            last = new Best(new WeakReference<>(null), k, new long[0], new float[0]);
        } else if (last.of.refersTo(sharded) && last.k >= k) {
            return last;
        }
        int most = (int) Math.min(Math.max(k, last.k), classes);
        try (TopClasses top = new VocabParallelTopK(most).evaluate(predictions)) {
            Best best = Best.of(sharded, most, top);
            if (sharded != null) { // what others hold might be changed in place
                LAST.set(best);
            }
            return best;
        }
    }

    /** The best classes of predictions. */
    private record Best(
            WeakReference<@Nullable ShardedPredictions> of, int k, long[] classes, float[] logits) {

        static Best of(@Nullable ShardedPredictions of, int k, TopClasses top) {
            return new Best(
                    new WeakReference<>(of),
                    k,
                    HostReads.longs(top.classes()),
                    HostReads.floats(top.logits()));
        }
    }

    /** The labels of a row and its predicted classes, the best first. */
    private record Row(long[] labels, long[] best) {

        /** Returns the places of predicted classes that are labels. */
        IntStream hits() {
            return IntStream.range(0, best.length)
                    .filter(i -> LongStream.of(labels).anyMatch(label -> label == best[i]));
        }

        long countHits() {
            return hits().count();
        }

        Ratio f1() {
            return new Ratio(2 * countHits(), best.length + labels.length);
        }
    }

    /** A value as a fraction, whose parts are summed over the rows. */
    private record Ratio(double above, double below) {

        double value() {
            return above / below;
        }
    }

    /** The sums of an accumulator. */
    private static final class Sums {

        private double above;
        private double below;
        private int[] right = {}; // by class, how often it was predicted and a label
        private int[] named = {}; // how often either

        void addByClass(Row row) {
            row.hits().forEach(i -> right = incremented(right, row.best[i]));
            LongStream.of(row.best).forEach(each -> named = incremented(named, each));
            LongStream.of(row.labels).forEach(each -> named = incremented(named, each));
        }

        private static int[] incremented(int[] counts, long which) {
            int at = Math.toIntExact(which);
            int[] enough = at < counts.length ? counts : Arrays.copyOf(counts, at + at / 2 + 16);
            enough[at]++;
            return enough;
        }

        double meanOfClasses() {
            return IntStream.range(0, named.length)
                    .filter(i -> named[i] > 0)
                    .mapToDouble(i -> i < right.length ? 2. * right[i] / named[i] : 0)
                    .average()
                    .orElse(Double.NaN);
        }
    }
}
