package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/** What chunks of logits tell is what the whole logits would. */
public class ChunkedEvaluationTest {

    private static final long ALL = 1 << 20;

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    private static ChunkedEvaluation evaluation(Communicator group, long classes, long chunk) {
        Cut cut = Cut.balanced(classes, group.getSize());
        return new ChunkedEvaluation(group, cut, ALL, chunk, null);
    }

    private static ShardRange range(Communicator group, long classes) {
        return Cut.balanced(classes, group.getSize()).getRange(group.getRank());
    }

    private static NDArray rows(NDArray whole, Communicator group) {
        ShardRange range = range(group, whole.getShape().get(0));
        return whole.get(new NDIndex().addSliceDim(range.start(), range.end())).duplicate();
    }

    private static NDArray random(NDManager manager, long seed, long... shape) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[(int) new Shape(shape).size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (2 * random.nextDouble() - 1);
        }
        return manager.create(values, new Shape(shape));
    }

    /** Against DJL on the whole logits, at every k, in chunks of many sizes, blocks and rests. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void topKIsThatOfDjl(int ranks) throws Exception {
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    int classes = 403;
                    NDArray x = random(manager, 1, 3, 2, 5); // two leading axes
                    NDArray w = random(manager, 2, classes, 5);
                    NDArray b = random(manager, 3, classes);
                    NDArray logits = x.reshape(6, 5).matMul(w.transpose()).add(b);
                    NDArray logSoftmax = logits.logSoftmax(1);
                    for (int chunk : new int[] {1, 4, 64, 0}) {
                        try (ChunkedEvaluation chunks = evaluation(group, classes, chunk)) {
                            for (int k : new int[] {1, 2, 7, 150, classes}) {
                                TopClasses best =
                                        chunks.topK(x, rows(w, group), rows(b, group), k, true);
                                Assert.assertEquals(best.classes().getShape(), new Shape(3, 2, k));
                                NDList djl = logits.topK(k, 1, true, true);
                                Assert.assertEquals(
                                        best.classes().toLongArray(), djl.get(1).toLongArray());
                                assertClose(best.logits(), djl.get(0));
                                NDArray expected = logSoftmax.topK(k, 1, true, true).get(0);
                                assertClose(best.logProbabilities(), expected);
                                assertClose(best.probabilities(), expected.exp());
                            }
                        }
                    }
                });
    }

    private static void assertClose(NDArray actual, NDArray expected) {
        Assert.assertEquals(actual.toFloatArray(), expected.toFloatArray(), 1e-5f);
    }

    /** Of equal logits the lowest class comes first, over chunks, blocks and ranks. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void tiesGoToTheLowestClass(int ranks) throws Exception {
        int classes = 700;
        int rows = 4;
        float[] logits = new float[rows * classes];
        SplittableRandom random = new SplittableRandom(5);
        for (int i = 0; i < logits.length; i++) {
            // few different values; a row of one value; a row with forbidden classes
            logits[i] = i < classes ? 1 : random.nextInt(i / classes * 3);
            logits[i] = i >= 3 * classes && logits[i] < 8 ? Float.NEGATIVE_INFINITY : logits[i];
        }
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    NDArray whole = manager.create(logits, new Shape(rows, classes));
                    ShardRange range = range(group, classes);
                    NDArray own =
                            whole.get(
                                    new NDIndex()
                                            .addAllDim()
                                            .addSliceDim(range.start(), range.end()));
                    for (int chunk : new int[] {1, 100, 0}) {
                        try (ChunkedEvaluation chunks = evaluation(group, classes, chunk)) {
                            for (int k : new int[] {1, 5, 260, classes}) {
                                TopClasses best = chunks.topK(own, null, null, k, false);
                                Assert.assertEquals(
                                        best.classes().toLongArray(),
                                        expected(logits, rows, classes, k));
                                Assert.assertNull(best.logProbabilities());
                                Assert.expectThrows(
                                        IllegalStateException.class, best::probabilities);
                            }
                        }
                    }
                });
    }

    private static long[] expected(float[] logits, int rows, int classes, int k) {
        return IntStream.range(0, rows)
                .boxed()
                .flatMap(
                        row ->
                                IntStream.range(0, classes)
                                        .boxed()
                                        .sorted(
                                                (a, b) ->
                                                        Float.compare(
                                                                logits[row * classes + b],
                                                                logits[row * classes + a]))
                                        .limit(k))
                .mapToLong(Integer::longValue)
                .toArray();
    }

    /** Half precision weights, and a row that is not a number. */
    @Test(timeOut = 60_000)
    public void topKOfOtherValues() throws Exception {
        RankThreads.run(
                2,
                (group, manager) -> {
                    NDArray x = random(manager, 1, 3, 5);
                    NDArray w = random(manager, 2, 50, 5).toType(DataType.FLOAT16, false);
                    NDArray wide = w.toType(DataType.FLOAT32, false);
                    x.set(new NDIndex("1"), Float.NaN);
                    try (ChunkedEvaluation chunks = evaluation(group, 50, 16)) {
                        long[] best =
                                chunks.topK(x, rows(w, group), null, 3, true)
                                        .classes()
                                        .toLongArray();
                        NDArray logits = x.matMul(wide.transpose());
                        long[] djl = logits.topK(3, 1, true, true).get(1).toLongArray();
                        djl[3] = 0;
                        djl[4] = 1;
                        djl[5] = 2;
                        Assert.assertEquals(best, djl);
                    }
                });
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = "The 24 best of 23 classes.*1 to 23 can be had")
    public void moreThanAllClassesAreRefused() {
        try (NDManager manager = NDManager.newBaseManager();
                ChunkedEvaluation chunks =
                        new ChunkedEvaluation(null, Cut.ofLengths(23), ALL, 0, null)) {
            chunks.topK(random(manager, 1, 2, 23), null, null, 24, false);
        }
    }

    /** The loss is the one that training computes, and its logits are those of the layer. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void lossAndLogits(int ranks) throws Exception {
        FusedReference reference = new FusedReference(7, 5, 23);
        for (LossOptions options :
                List.of(
                        LossOptions.DEFAULT,
                        new LossOptions(-100, 0.1f, 0),
                        new LossOptions(3, 0.2f, 0.05f))) {
            reference.labels[2] = 3;
            reference.compute(options, true);
            RankThreads.run(
                    ranks,
                    (group, manager) -> {
                        NDArray x = manager.create(reference.x, new Shape(7, 5));
                        NDArray w = manager.create(reference.weight, new Shape(23, 5));
                        NDArray b = manager.create(reference.bias);
                        NDArray labels = manager.create(reference.labels);
                        NDArray ownW = rows(w, group);
                        NDArray ownB = rows(b, group);
                        try (ChunkedEvaluation chunks = evaluation(group, 23, 4)) {
                            NDArray loss = chunks.loss(x, ownW, ownB, labels, options);
                            Assert.assertEquals(loss.getFloat(), reference.loss, 2e-6);
                            assertClose(
                                    chunks.logits(x, ownW, ownB),
                                    x.matMul(ownW.transpose()).add(ownB));
                        }
                    });
        }
    }

    /** Equal logits are ranked by class, also where one of them is in another chunk or rank. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void countsTheClassesBeforeALabel(int ranks) throws Exception {
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    float[] weight = {1, 3, 2, 3, 0, 3, 5, -1};
                    NDArray w = rows(manager.create(weight).reshape(8, 1), group);
                    NDArray x = manager.create(new float[] {1, 1, -1}, new Shape(3, 1));
                    NDArray labels = manager.create(new long[] {5, 6, 4});
                    try (ChunkedEvaluation chunks = evaluation(group, 8, 3)) {
                        NDArray before = chunks.countBefore(x, w, null, labels);
                        Assert.assertEquals(before.toLongArray(), new long[] {3, 0, 1});
                    }
                });
    }

    /** Few different logits, forbidden classes and NaN, against the comparison of whole rows. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void countsLikeTheWholeRows(int ranks) throws Exception {
        int classes = 50;
        float[] weight = new float[classes];
        long[] labels = new long[2 * classes];
        float[] x = new float[2 * classes];
        for (int i = 0; i < classes; i++) {
            weight[i] = i % 7 == 3 ? Float.NEGATIVE_INFINITY : i % 5;
            labels[i] = i;
            labels[classes + i] = i;
            x[i] = 1;
            x[classes + i] = i % 9 == 0 ? Float.NaN : 0.5f;
        }
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    NDArray w = manager.create(weight, new Shape(classes, 1));
                    NDArray features = manager.create(x, new Shape(2 * classes, 1));
                    NDArray ids = manager.create(labels);
                    NDArray logits = features.matMul(w.transpose());
                    NDArray own = logits.gather(ids.expandDims(1), 1).flatten();
                    long[] expected = ChunkRankingTest.countBefore(logits, own, ids).toLongArray();
                    for (int chunk : new int[] {1, 7, 0}) {
                        try (ChunkedEvaluation chunks = evaluation(group, classes, chunk)) {
                            NDArray before =
                                    chunks.countBefore(features, rows(w, group), null, ids);
                            Assert.assertEquals(before.toLongArray(), expected);
                        }
                    }
                });
    }
}
