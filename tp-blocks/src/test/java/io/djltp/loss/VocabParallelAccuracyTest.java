package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.TopKAccuracy;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.HashSet;
import java.util.SplittableRandom;

/** The accuracy of logits that are cut by class is DJL's accuracy of the whole logits. */
public class VocabParallelAccuracyTest {

    private static final int ROWS = 200;
    private static final int CLASSES = 10;

    /**
     * Of a test, by their number: to let ranks join takes longer than most of what they compute.
     */
    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void accuracyAndTopKAreThoseOfDjl(int ranks) {
        float[] logits = new float[ROWS * CLASSES];
        long[] labels = new long[ROWS];
        random(logits, labels, 1e6);
        assertSame(ranks, logits, labels, new VocabParallelAccuracy(), new Accuracy());
        for (int k = 2; k <= CLASSES; k++) {
            assertSame(ranks, logits, labels, new VocabParallelAccuracy(k), new TopKAccuracy(k));
        }
    }

    /** Of equal logits the class with the lowest number wins: many rows have several at the top. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void tiesAreThoseOfDjl(int ranks) {
        float[] logits = new float[ROWS * CLASSES];
        long[] labels = new long[ROWS];
        random(logits, labels, 2);
        assertSame(ranks, logits, labels, new VocabParallelAccuracy(), new Accuracy());
    }

    /** DJL's top-k takes ties in the order of an unstable sort: here only their number counts. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void topKWithTiesTriesTheLowestClassesFirst(int ranks) {
        float[] logits = {1, 3, 3, 3, 0, 3};
        int[] place = {5, 1, 2, 3, 6, 4};
        for (int label = 0; label < 6; label++) {
            for (int k = 1; k <= 6; k++) {
                float accuracy =
                        accuracy(ranks, logits, new long[] {label}, new VocabParallelAccuracy(k));
                Assert.assertEquals(
                        accuracy, place[label] <= k ? 1f : 0f, "label " + label + ", k " + k);
            }
        }
    }

    /** NaN is larger than any number, to DJL too; but a label that is NaN itself is never right. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void aRowWithNaN(int ranks) {
        float[] logits = {1, 2, Float.NaN, 5, 4};
        for (int label : new int[] {0, 1, 3, 4}) {
            long[] labels = {label};
            assertSame(ranks, logits, labels, new VocabParallelAccuracy(), new Accuracy());
            for (int k = 2; k <= 5; k++) {
                assertSame(
                        ranks, logits, labels, new VocabParallelAccuracy(k), new TopKAccuracy(k));
            }
        }
        for (int k = 1; k <= 4; k++) {
            Evaluator evaluator = new VocabParallelAccuracy(k);
            Assert.assertEquals(accuracy(ranks, logits, new long[] {2}, evaluator), 0f);
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void minusInfinityIsAnOrdinaryLogit(int ranks) {
        float no = Float.NEGATIVE_INFINITY;
        float[] logits = {no, no, 3, no, no, no, no, 2};
        for (long label : new long[] {2, 7}) {
            long[] labels = {label};
            assertSame(ranks, logits, labels, new VocabParallelAccuracy(), new Accuracy());
            assertSame(ranks, logits, labels, new VocabParallelAccuracy(2), new TopKAccuracy(2));
        }
    }

    /** The accuracy of the rows that count is that of a batch which has no others. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void rowsThatDoNotCountAreLeftOut(int ranks) {
        float[] logits = {1, 2, 5, 4, 9, 1, 2, 3, 1, 1, 0, 8};
        long[] labels = {2, -100, 3}; // of 4 classes: right, left out, right
        try (NDManager manager = NDManager.newBaseManager()) {
            Evaluator whole = new VocabParallelAccuracy();
            Assert.assertEquals(accumulated(manager, logits, labels, whole), 1f);
            Evaluator other = new VocabParallelAccuracy("Accuracy", 1, 3); // now 3 does not count
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> accumulated(manager, logits, labels, other),
                    "label of row 1 is -100");
        }
        // of the three rows two are right, and the one between them is not
        Assert.assertEquals(
                accuracy(ranks, logits, labels, new VocabParallelAccuracy()), 2f / 3, 1e-7f);
    }

    @Test
    public void wholeLogitsAreTakenToo() {
        float[] logits = new float[ROWS * CLASSES];
        long[] labels = new long[ROWS];
        random(logits, labels, 3);
        try (NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(
                    accumulated(manager, logits, labels, new VocabParallelAccuracy()),
                    accumulated(manager, logits, labels, new Accuracy()));
        }
    }

    @Test
    public void namesAreThoseOfDjl() {
        Assert.assertEquals(new VocabParallelAccuracy().getName(), new Accuracy().getName());
        Assert.assertEquals(new VocabParallelAccuracy(5).getName(), new TopKAccuracy(5).getName());
        Refusals.throwsArgument(() -> new VocabParallelAccuracy(0), "must be 1 or more: 0");
    }

    /**
     * Fills logits with whole numbers below a limit, none of them twice in a row if it is large.
     */
    private static void random(float[] logits, long[] labels, double limit) {
        SplittableRandom random = new SplittableRandom(17);
        for (int i = 0; i < logits.length; i++) {
            logits[i] = (float) Math.floor(limit * random.nextDouble());
        }
        for (int i = 0; i < labels.length; i++) {
            labels[i] = random.nextInt(CLASSES);
        }
    }

    private static void assertSame(
            int ranks, float[] logits, long[] labels, Evaluator evaluator, Evaluator djl) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(
                    accuracy(ranks, logits, labels, evaluator),
                    accumulated(manager, logits, labels, djl),
                    djl.getName());
        }
    }

    private static float accumulated(
            NDManager manager, float[] logits, long[] labels, Evaluator evaluator) {
        NDArray whole =
                manager.create(logits, new Shape(labels.length, logits.length / labels.length));
        evaluator.addAccumulator("all");
        evaluator.updateAccumulator("all", new NDList(manager.create(labels)), new NDList(whole));
        return evaluator.getAccumulator("all");
    }

    /** Returns the share of rows that all ranks find right. */
    private static float accuracy(int ranks, float[] logits, long[] labels, Evaluator evaluator) {
        Shape shape = new Shape(labels.length, logits.length / labels.length);
        var results =
                Ranks.run(
                        ParallelMode.TENSOR,
                        ranks,
                        context -> {
                            try (NDManager manager = NDManager.newBaseManager()) {
                                NDArray slice =
                                        LossPass.slice(context, manager.create(logits, shape));
                                NDArray right =
                                        evaluator.evaluate(
                                                new NDList(manager.create(labels)),
                                                new NDList(slice));
                                Assert.assertEquals(right.getShape(), new Shape(labels.length));
                                return (float) right.sum().getLong() / labels.length;
                            }
                        });
        Assert.assertEquals(new HashSet<>(results).size(), 1, "" + results);
        return results.get(0);
    }
}
