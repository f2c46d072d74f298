package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestCases;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/** What chunks of logits tell is what the whole logits would, at every cut of the classes. */
@SuppressWarnings("try") // a scope is used by being open
public class ChunkedEvaluationTest extends RecordedTest {

    private static final int ROWS = 6;
    private static final int CLASSES = 403;

    @DataProvider
    public Object[][] cuts() {
        return TestCases.product(HeadReference.cuts(CLASSES));
    }

    /**
     * The best classes, those before a label, loss and logits, in chunks of many sizes, blocks and
     * rests, of random numbers and of few different ones; of equal logits the lowest class is
     * first.
     */
    @Test(dataProvider = "cuts", timeOut = 120_000)
    public void equalsTheWholeLogits(Cut cut) throws Exception {
        for (boolean ties : new boolean[] {false, true}) {
            HeadReference data = new HeadReference(1, 1, ROWS, 5, CLASSES).withSpecialLabels();
            for (double[] each : List.of(data.x, data.weight, data.bias)) {
                SplittableRandom random = new SplittableRandom(each.length);
                Arrays.setAll(each, i -> ties ? random.nextInt(-2, 3) / 2.0 : each[i]);
            }
            RankThreads.run(
                    cut.getRanks(),
                    (group, manager) -> {
                        List<ShardRange> own = cut.getRanges(group.getRank());
                        NDArray x = data.x(manager).reshape(3, 2, 5); // two leading axes
                        NDArray w = data.weight(manager, own);
                        NDArray b = data.bias(manager, own);
                        Whole whole = new Whole(data, manager);
                        for (int chunk : new int[] {1, 64, 0}) {
                            try (ChunkedEvaluation chunks =
                                    new ChunkedEvaluation(group, cut, 1 << 20, chunk, null)) {
                                NDArray logits = chunks.logits(x, w, b);
                                Assert.assertEquals(
                                        logits.toFloatArray(), whole.ofShard(own), 1e-5f);
                                for (int k : new int[] {1, 2, 7, 150, CLASSES}) {
                                    whole.assertBest(chunks.topK(x, w, b, k, true), k, ties);
                                    whole.assertBest(
                                            chunks.topK(logits, null, null, k, true), k, ties);
                                }
                                NDArray labels = data.labels(manager).reshape(3, 2);
                                for (NDArray before :
                                        List.of(
                                                chunks.countBefore(x, w, b, labels),
                                                chunks.countBefore(logits, null, null, labels))) {
                                    Assert.assertEquals(before.toLongArray(), whole.before());
                                }
                                for (LossOptions options :
                                        List.of(
                                                HeadStep.PLAIN,
                                                HeadStep.SMOOTH,
                                                HeadStep.EVERYTHING)) {
                                    float loss = chunks.loss(x, w, b, labels, options).getFloat();
                                    Assert.assertEquals(loss, data.loss(options), 2e-6);
                                }
                            }
                        }
                    });
        }
    }

    /** The logits of all classes. */
    private static final class Whole {

        private final HeadReference data;
        private final NDArray logits;
        private final float[] values;

        Whole(HeadReference data, NDManager manager) {
            this.data = data;
            NDArray b = data.bias(manager, List.of(new ShardRange(0, CLASSES)));
            logits = data.x(manager).matMul(data.weight(manager).transpose()).add(b);
            values = logits.toFloatArray();
        }

        float[] ofShard(List<ShardRange> own) {
            int[] classes = HeadReference.places(own, 1).toArray();
            float[] part = new float[ROWS * classes.length];
            for (int i = 0; i < part.length; i++) {
                part[i] = values[i / classes.length * CLASSES + classes[i % classes.length]];
            }
            return part;
        }

        private int[] sorted(int row) {
            return IntStream.range(0, CLASSES)
                    .boxed()
                    .sorted(Comparator.comparingDouble(k -> -values[row * CLASSES + k]))
                    .mapToInt(k -> k)
                    .toArray();
        }

        long[] before() {
            return IntStream.range(0, ROWS)
                    .mapToLong(
                            row ->
                                    IntStream.of(sorted(row))
                                            .takeWhile(k -> k != data.labels[row])
                                            .count())
                    .toArray();
        }

        void assertBest(TopClasses best, int k, boolean ties) {
            Assert.assertEquals(best.classes().getShape(), new Shape(3, 2, k));
            long[] expected =
                    IntStream.range(0, ROWS)
                            .flatMap(row -> Arrays.stream(sorted(row)).limit(k))
                            .mapToLong(each -> each)
                            .toArray();
            Assert.assertEquals(best.classes().toLongArray(), expected);
            NDList djl = logits.topK(k, 1, true, true);
            if (!ties) {
                Assert.assertEquals(expected, djl.get(1).toLongArray());
            }
            NDArray logSoftmax = logits.logSoftmax(1).topK(k, 1, true, true).get(0);
            assertClose(best.logits(), djl.get(0));
            assertClose(best.logProbabilities(), logSoftmax);
            assertClose(best.probabilities(), logSoftmax.exp());
        }
    }

    private static void assertClose(NDArray actual, NDArray expected) {
        Assert.assertEquals(actual.toFloatArray(), expected.toFloatArray(), 1e-5f);
    }

    /** Few different logits, forbidden classes and NaN; half precision weights. */
    @Test(dataProvider = "cuts", timeOut = 60_000)
    public void otherValues(Cut cut) throws Exception {
        HeadReference data = new HeadReference(2 * CLASSES, 1, CLASSES);
        Arrays.setAll(data.weight, i -> i % 7 == 3 ? Double.NEGATIVE_INFINITY : i % 5);
        Arrays.setAll(data.labels, i -> i % CLASSES);
        Arrays.setAll(data.x, i -> i < CLASSES ? 1 : i % 9 == 0 ? Double.NaN : 0.5);
        RankThreads.run(
                cut.getRanks(),
                (group, manager) -> {
                    NDArray w = data.weight(manager, cut.getRanges(group.getRank()));
                    NDArray narrow = w.toType(DataType.FLOAT16, true);
                    NDArray x = data.x(manager);
                    NDArray labels = data.labels(manager);
                    NDArray logits = x.matMul(data.weight(manager).transpose());
                    NDArray own = logits.gather(labels.expandDims(1), 1).flatten();
                    long[] expected = countBefore(logits, own, labels).toLongArray();
                    for (int chunk : new int[] {7, 0}) {
                        try (ChunkedEvaluation chunks =
                                new ChunkedEvaluation(group, cut, 1 << 22, chunk, null)) {
                            for (NDArray weight : List.of(w, narrow)) {
                                NDArray before = chunks.countBefore(x, weight, null, labels);
                                Assert.assertEquals(before.toLongArray(), expected);
                                TopClasses best = chunks.topK(x, weight, null, 4, false);
                                long[] classes = best.classes().toLongArray();
                                Assert.assertEquals(
                                        Arrays.copyOf(classes, 4), new long[] {4, 9, 14, 19});
                                int nan = 4 * (CLASSES + (9 - CLASSES % 9));
                                Assert.assertEquals(
                                        Arrays.copyOfRange(classes, nan, nan + 4),
                                        new long[] {0, 1, 2, 3});
                                Assert.assertNull(best.logProbabilities());
                                Refusals.throwsState(best::probabilities);
                            }
                        }
                    }
                });
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "The 24 best of 23 classes.*1 to 23 can be had")
    public void moreThanAllClassesThrow() {
        try (ChunkedEvaluation chunks =
                new ChunkedEvaluation(null, Cut.ofLengths(23), 1 << 20, 0, null)) {
            chunks.topK(manager.ones(new Shape(2, 23)), null, null, 24, false);
        }
    }

    @Test
    public void elementsBeforeAreLargerOrEqualAndLowerOrNotComparable() {
        float[][] numbers = {{3, 1, 2, 3}, {3, 3, 3, 3}, {1, 2, 3, 4}, {Float.NaN, 1, 5, 0}};
        NDArray value = manager.create(new float[] {2, 3, 0, 4});
        NDArray column = manager.create(new long[] {2, 2, -7, 9});
        NDArray before = countBefore(manager.create(numbers), value, column);
        Assert.assertEquals(before.toLongArray(), new long[] {2, 2, 4, 2});
        int columns = (1 << 20) + 3;
        NDArray row = manager.arange(columns).toType(DataType.FLOAT32, false);
        value = manager.create(new float[] {7});
        before = countBefore(row.reshape(1, columns), value, manager.create(new long[] {7}));
        Assert.assertEquals(before.toLongArray(), new long[] {columns - 8});
    }

    private static NDArray countBefore(NDArray rows, NDArray value, NDArray column) {
        try (TorchScope scope = TorchScope.open()) {
            return TensorView.toArray(
                    LogitChunks.countBefore(
                            TensorView.of(rows).tensor(),
                            TensorView.of(value).tensor(),
                            TensorView.of(column).tensor()),
                    rows.getManager());
        }
    }
}
