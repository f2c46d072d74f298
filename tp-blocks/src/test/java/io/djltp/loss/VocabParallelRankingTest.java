package io.djltp.loss;

import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.TrainerKind.MESH_2X2;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.Trainer;

import io.djltp.collective.Collective;
import io.djltp.head.TopClasses;
import io.djltp.testing.Configs;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.ToDoubleFunction;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/** Metrics of rankings are those of a plain implementation, of which many places are ties. */
public class VocabParallelRankingTest extends RecordedTest {

    private static final int ROWS = 7; // of a batch, uneven over 2 to 4 ranks
    private static final int CLASSES = 1203;
    private static final int FEATURES = 3;
    private static final float THRESHOLD = 4.5f;
    private static final List<Integer> KS = List.of(1, 5, 3, 40);

    private static final Random RANDOM = new Random(11);
    private static final float[] WEIGHT = random(CLASSES * FEATURES, 3);
    private static final float[] INVERSE =
            VocabParallelRanking.inversePropensities(
                    RANDOM.longs(CLASSES, 0, 100).toArray(), 5000, 0.55, 1.5);
    private static final List<Batch> BATCHES = List.of(batch(1000), batch(4));
    private static final List<PlainRow> PLAIN = plainRows();

    /** Rows of whole numbers, so that logits are exact and many are equal, and their labels. */
    private record Batch(float[] features, long[][] labels) {

        NDList labels(NDManager manager) {
            int width = labels[0].length;
            long[] all = Stream.of(labels).flatMapToLong(LongStream::of).toArray();
            return new NDList(manager.create(all, new Shape(ROWS, width)));
        }

        NDList features(NDManager manager) {
            return new NDList(manager.create(features, new Shape(ROWS, FEATURES)));
        }

        double logit(int row, int label) {
            return IntStream.range(0, FEATURES)
                    .mapToDouble(i -> features[row * FEATURES + i] * WEIGHT[label * FEATURES + i])
                    .sum();
        }
    }

    private static float[] random(int length, int limit) {
        float[] values = new float[length];
        for (int i = 0; i < length; i++) {
            values[i] = RANDOM.nextInt(limit);
        }
        return values;
    }

    /** Makes rows of 0 labels, of all that there may be, and of numbers between. */
    private static Batch batch(int width) {
        long[][] labels = new long[ROWS][width];
        for (int row = 0; row < ROWS; row++) {
            int count = row == 2 ? 0 : row == 4 ? width : 1 + RANDOM.nextInt(4);
            Set<Long> own = new TreeSet<>();
            while (own.size() < count) {
                own.add((long) RANDOM.nextInt(count > 4 ? CLASSES : 50)); // low ones win ties
            }
            Arrays.fill(labels[row], -1);
            System.arraycopy(own.stream().mapToLong(it -> it).toArray(), 0, labels[row], 0, count);
        }
        return new Batch(random(ROWS * FEATURES, 3), labels);
    }

    /** The best classes of a row and its labels, as a plain implementation has them. */
    private record PlainRow(List<Integer> best, Set<Integer> labels, List<Double> logits) {}

    private static List<PlainRow> plainRows() {
        List<PlainRow> rows = new ArrayList<>();
        for (Batch batch : BATCHES) {
            for (int row = 0; row < ROWS; row++) {
                Set<Integer> labels = new HashSet<>();
                LongStream.of(batch.labels[row])
                        .filter(it -> it >= 0)
                        .forEach(it -> labels.add((int) it));
                int each = row;
                ToDoubleFunction<Integer> logit = it -> batch.logit(each, it);
                List<Integer> best =
                        IntStream.range(0, CLASSES)
                                .boxed()
                                .sorted(
                                        (a, b) ->
                                                Double.compare(
                                                        batch.logit(each, b), batch.logit(each, a)))
                                .toList();
                if (!labels.isEmpty()) {
                    rows.add(
                            new PlainRow(
                                    best,
                                    labels,
                                    best.stream().map(logit::applyAsDouble).toList()));
                }
            }
        }
        return rows;
    }

    private static double mean(ToDoubleFunction<PlainRow> metric) {
        return PLAIN.stream().mapToDouble(metric).average().orElseThrow();
    }

    private static double sum(ToDoubleFunction<PlainRow> metric) {
        return PLAIN.stream().mapToDouble(metric).sum();
    }

    private static long hits(PlainRow row, int k) {
        return row.best.subList(0, k).stream().filter(row.labels::contains).count();
    }

    private static double ndcg(PlainRow row, int k) {
        double found = 0;
        double most = 0;
        for (int i = 0; i < k; i++) {
            double gain = 1 / (Math.log(i + 2) / Math.log(2));
            found += row.labels.contains(row.best.get(i)) ? gain : 0;
            most += i < row.labels.size() ? gain : 0;
        }
        return found / most;
    }

    private static double psp(int k) {
        return sum(
                        row ->
                                row.best.subList(0, k).stream()
                                        .filter(row.labels::contains)
                                        .mapToDouble(it -> INVERSE[it])
                                        .sum())
                / sum(
                        row ->
                                row.labels.stream()
                                        .map(it -> -INVERSE[it])
                                        .sorted()
                                        .limit(k)
                                        .mapToDouble(it -> -it)
                                        .sum());
    }

    /** Counts true positives, false positives and false negatives of each class. */
    private static double f1(int k, float threshold, boolean byClass) {
        long[][] counts = new long[CLASSES][3];
        for (PlainRow row : PLAIN) {
            Set<Integer> predicted = new HashSet<>();
            for (int i = 0; i < k; i++) {
                if (row.logits.get(i) > threshold) {
                    predicted.add(row.best.get(i));
                }
            }
            for (int each = 0; each < CLASSES; each++) {
                boolean is = row.labels.contains(each);
                boolean said = predicted.contains(each);
                counts[each][0] += is && said ? 1 : 0;
                counts[each][1] += !is && said ? 1 : 0;
                counts[each][2] += is && !said ? 1 : 0;
            }
        }
        if (byClass) {
            return Stream.of(counts)
                    .filter(each -> LongStream.of(each).sum() > 0)
                    .mapToDouble(each -> 2. * each[0] / (2 * each[0] + each[1] + each[2]))
                    .average()
                    .orElseThrow();
        }
        long[] all = new long[3];
        Stream.of(counts).forEach(each -> Arrays.setAll(all, i -> all[i] + each[i]));
        return 2. * all[0] / (2 * all[0] + all[1] + all[2]);
    }

    @DataProvider
    public static Object[][] cases() {
        List<TrainerKind> kinds = new ArrayList<>(TrainerKind.all(1, 2, 3, 4));
        kinds.add(TrainerKind.PLAIN);
        kinds.add(MESH_2X2);
        return TrainerKind.rows(kinds, List.of(true, false));
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsAPlainImplementation(TrainerKind kind, boolean fused) {
        List<VocabParallelRanking> evaluators = new ArrayList<>();
        List<Double> expected = new ArrayList<>();
        for (int k : KS) {
            float none = Float.NEGATIVE_INFINITY;
            evaluators.add(VocabParallelRanking.precision(k));
            expected.add(mean(row -> (double) hits(row, k) / k));
            evaluators.add(VocabParallelRanking.recall(k));
            expected.add(mean(row -> (double) hits(row, k) / row.labels.size()));
            evaluators.add(VocabParallelRanking.ndcg(k));
            expected.add(mean(row -> ndcg(row, k)));
            evaluators.add(VocabParallelRanking.propensityPrecision(k, INVERSE));
            expected.add(psp(k));
            evaluators.add(VocabParallelRanking.microF1(k, none));
            expected.add(f1(k, none, false));
            evaluators.add(VocabParallelRanking.microF1(k, THRESHOLD));
            expected.add(f1(k, THRESHOLD, false));
            evaluators.add(VocabParallelRanking.macroF1(k, THRESHOLD));
            expected.add(f1(k, THRESHOLD, true));
        }
        for (VocabParallelRanking each : evaluators) {
            each.addAccumulator("all");
            each.addAccumulator("known");
        }
        evaluate(kind, fused, evaluators);
        for (int i = 0; i < evaluators.size(); i++) {
            VocabParallelRanking each = evaluators.get(i);
            Assert.assertEquals(each.getAccumulator("all"), expected.get(i), 1e-6, each.getName());
            Assert.assertEquals(each.getAccumulator("known"), each.getAccumulator("all"), 0);
            each.resetAccumulator("all");
            Assert.assertTrue(Float.isNaN(each.getAccumulator("all")));
        }
    }

    /** Evaluates all batches; the evaluators share the top-k of all but the first. */
    private static void evaluate(
            TrainerKind kind, boolean fused, List<VocabParallelRanking> evaluators) {
        try (Model model = Model.newInstance("ranking")) {
            model.setBlock(
                    newHead(CLASSES)
                            .optBias(false)
                            .optFusedLoss(fused)
                            .optBatchShardedInput(true)
                            .build());
            model.getBlock()
                    .initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, FEATURES));
            model.getBlock().getParameters().valueAt(0).getArray().set(WEIGHT);
            try (Trainer trainer =
                            kind.open(
                                    model,
                                    Configs.of(new VocabParallelCrossEntropyLoss()),
                                    new Shape(ROWS, FEATURES));
                    NDManager manager = NDManager.newBaseManager()) {
                for (Batch batch : BATCHES) {
                    NDList predictions = trainer.evaluate(batch.features(manager));
                    long before = gathers(trainer);
                    NDList labels = batch.labels(manager);
                    evaluators.forEach(it -> it.updateAccumulator("all", labels, predictions));
                    boolean one = batch != BATCHES.get(0) || gathers(trainer) == before;
                    Assert.assertTrue(!one || gathers(trainer) - before <= 1, kind + "");
                    try (TopClasses best = new VocabParallelTopK(41).evaluate(predictions)) {
                        evaluators.forEach(it -> it.updateAccumulator("known", labels, best));
                    }
                }
            }
        }
    }

    private static long gathers(Trainer trainer) {
        return trainer instanceof ParallelTrainer parallel
                ? parallel.getCollectiveCounts().get(Collective.ALL_GATHER)
                : 0;
    }

    /** One label a row is a recall of 0 or 1; the label -100 does not count. */
    @Test
    public void oneLabelARow() {
        NDList logits = new NDList(manager.create(new float[][] {{1, 3, 2}, {0, 0, 0}, {1, 2, 3}}));
        NDList labels = new NDList(manager.create(new long[] {2, 0, -100}));
        float nan = Float.NaN;
        Assert.assertEquals(
                VocabParallelRanking.precision(1).evaluate(labels, logits).toFloatArray(),
                new float[] {0, 1, nan});
        // there are 3 classes, and all of them are found
        Assert.assertEquals(
                VocabParallelRanking.recall(9).evaluate(labels, logits).toFloatArray(),
                new float[] {1, 1, nan});
        // what the caller holds may change between two evaluations
        logits.head().set(new float[] {0, 0, 1, 0, 0, 1, 0, 0, 0});
        Assert.assertEquals(
                VocabParallelRanking.precision(1).evaluate(labels, logits).toFloatArray(),
                new float[] {1, 0, nan});
    }

    /** A row may have fewer best classes than others, such as one without those of a filter. */
    @Test
    public void rowsOfFewerClasses() {
        float none = Float.NEGATIVE_INFINITY;
        TopClasses best =
                new TopClasses(
                        manager.create(new long[][] {{2, 1, 0}, {1, 0, 0}}),
                        manager.create(new float[][] {{3, 2, 1}, {3, none, none}}),
                        null);
        NDList labels = new NDList(manager.create(new long[][] {{0, 1}, {0, -1}}));
        VocabParallelRanking recall = VocabParallelRanking.recall(3);
        VocabParallelRanking f1 = VocabParallelRanking.microF1(3, none);
        for (VocabParallelRanking each : List.of(recall, f1)) {
            each.addAccumulator("a");
            each.updateAccumulator("a", labels, best);
        }
        Assert.assertEquals(recall.getAccumulator("a"), 0.5f, 0);
        Assert.assertEquals(f1.getAccumulator("a"), 2 * 2 / (4f + 3), 1e-6);
    }

    /** Of pyxclib's compute_inv_propesity. */
    @Test
    public void propensities() {
        float[] inverse =
                VocabParallelRanking.inversePropensities(new long[] {0, 1, 100}, 1000, 0.55, 1.5);
        double c = (Math.log(1000) - 1) * Math.pow(2.5, 0.55);
        for (int i = 0; i < 3; i++) {
            double count = new double[] {0, 1, 100}[i];
            Assert.assertEquals(
                    inverse[i], 1 + c * Math.pow(count + 1.5, -0.55), 1e-6 * inverse[i]);
        }
    }

    @Test
    public void whatCannotBeIsNamed() {
        Class<IllegalArgumentException> refused = IllegalArgumentException.class;
        Refusals.expect(refused, () -> VocabParallelRanking.ndcg(0), "nDCG must be 1 or more: 0");
        Refusals.expect(
                refused, () -> VocabParallelRanking.microF1(1, Float.NaN), "threshold of microF1");
        Refusals.expect(
                refused,
                () -> VocabParallelRanking.inversePropensities(new long[1], 0, 1, 1),
                "rows > 0, a >= 0 and b > 0, not 0, 1.0 and 1.0");
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList logits = new NDList(manager.create(new float[][] {{1, 3, 2}, {0, 1, 0}}));
            VocabParallelRanking recall = VocabParallelRanking.recall(2);
            NDList labels = new NDList(manager.create(new long[][] {{0, -1}, {2, -1}}));
            Refusals.expect(
                    refused,
                    () -> recall.updateAccumulator("a", labels, logits),
                    "R@2 has no accumulator a");
            NDList none = new NDList(manager.create(new long[][] {{0, 3}, {2, -1}}));
            Refusals.expect(refused, () -> recall.evaluate(none, logits), "is 3");
            NDList few = new NDList(manager.create(new long[][] {{0, 1}}));
            Refusals.expect(refused, () -> recall.evaluate(few, logits), "do not fit");
            Refusals.expect(
                    refused,
                    () ->
                            VocabParallelRanking.propensityPrecision(1, new float[2])
                                    .evaluate(labels, logits),
                    "A label is the class 2, but there are inverse propensities of 2 classes");
            NDArray bad = logits.head().duplicate();
            bad.set(new float[] {1, Float.NaN, 0, 0, 0, 0});
            Refusals.expect(
                    ArithmeticException.class,
                    () -> recall.evaluate(labels, new NDList(bad)),
                    "Row 0 of 2");
        }
    }
}
