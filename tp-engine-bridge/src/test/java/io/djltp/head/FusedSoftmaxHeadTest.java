package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.WeightUpdate;

import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** The fused cross entropy is the whole one, however the classes are cut and the memory is. */
public class FusedSoftmaxHeadTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final long ALL = 1 << 20;

    private static final LossOptions PLAIN = LossOptions.DEFAULT;
    private static final LossOptions SMOOTH = new LossOptions(-100, 0.1f, 0);
    private static final LossOptions EVERYTHING = new LossOptions(3, 0.2f, 0.05f);

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (int ranks = 1; ranks <= 4; ranks++) {
            for (LossOptions options : List.of(PLAIN, SMOOTH, EVERYTHING)) {
                for (int kept : new int[] {0, 1, 100}) {
                    cases.add(new Object[] {ranks, options, kept, 1});
                }
                cases.add(new Object[] {ranks, options, 3, 2});
                cases.add(new Object[] {ranks, options, 100, 3});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** Chunks of four classes, of which none, some or all are kept, in one or several lanes. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsTheWhole(int ranks, LossOptions options, int kept, int lanes)
            throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        reference.labels[2] = 3;
        reference.labels[4] = reference.labels[5]; // two rows of one class
        reference.compute(options, true);
        long budget = (kept + 1) * 4L * (ROWS + 1) * Float.BYTES;
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    Autograd.setThreads(lanes);
                    ShardRange range = Cut.balanced(CLASSES, ranks).getRange(group.getRank());
                    NDArray x = manager.create(reference.x, new Shape(ROWS, FEATURES));
                    NDArray w = slice(manager, reference.weight, range);
                    NDArray b = manager.create(reference.bias).get(index(range)).duplicate();
                    NDArray labels = manager.create(reference.labels);
                    NDArray before = w.duplicate();
                    NDArray biasGradient = manager.zeros(b.getShape());
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(
                                    group,
                                    Cut.balanced(CLASSES, ranks),
                                    budget,
                                    4,
                                    HeadOptions.DEFAULT)) {
                        CollectiveCounts start = group.getCounts();
                        FusedSoftmaxHead.Result result = fused.evaluate(x, w, b, labels, options);
                        int calls = ranks == 1 ? 0 : 2;
                        Assert.assertEquals(calls(group, start), calls);
                        Assert.assertEquals(w, before);
                        Assert.assertEquals(result.value().getFloat(), reference.loss, 1e-6);
                        fused.update(w, b, biasGradient, rateOne(), 0.5f, null);
                        Assert.assertEquals(calls(group, start), calls);
                        group.allReduce(result.gradient(), ReduceOp.SUM);
                        assertClose(result.gradient(), reference.featureGradient, 0, "dX");
                    }
                    int first = (int) range.start();
                    NDArray weightGradient = before.sub(w).mul(2f);
                    assertClose(weightGradient, reference.weightGradient, first * FEATURES, "dW");
                    assertClose(biasGradient.mul(2f), reference.biasGradient, first, "db");
                });
    }

    private static long calls(Communicator group, CollectiveCounts start) {
        return group.getCounts().minus(start).total();
    }

    private static WeightUpdate rateOne() {
        WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
        update.begin(1, 1);
        return update;
    }

    private static NDArray slice(NDManager manager, float[] weight, ShardRange range) {
        return manager.create(weight, new Shape(CLASSES, FEATURES)).get(index(range)).duplicate();
    }

    private static NDIndex index(ShardRange range) {
        return new NDIndex().addSliceDim(range.start(), range.end());
    }

    private static void assertClose(NDArray actual, double[] expected, int first, String what) {
        float[] values = actual.toFloatArray();
        for (int i = 0; i < values.length; i++) {
            Assert.assertEquals(values[i], expected[first + i], 2e-6, what + " " + i);
        }
    }

    @DataProvider
    public Object[][] hand() {
        return new Object[][] {
            {
                LossOptions.DEFAULT,
                0.4401897,
                new double[] {.0320586, .0871443, .2368828, -.3560857}
            },
            {SMOOTH, 0.5901897, new double[] {.0070586, .0621443, .2118828, -.2810857}},
            {
                new LossOptions(-100, 0, 0.01f),
                0.5585388,
                new double[] {.0342644, .0931402, .2531813, -.3117820}
            }
        };
    }

    /** The logits 0 to 3 and the label 3: the features are one 1, so that weights are logits. */
    @Test(dataProvider = "hand", timeOut = 60_000)
    public void equalsWhatIsComputedByHand(LossOptions options, double loss, double[] gradient)
            throws Exception {
        for (int ranks : new int[] {1, 2, 4}) {
            RankThreads.run(
                    ranks,
                    (group, manager) -> {
                        ShardRange range = Cut.balanced(4, ranks).getRange(group.getRank());
                        NDArray x = manager.ones(new Shape(1, 1));
                        NDArray w = manager.arange(4f).reshape(4, 1).get(index(range)).duplicate();
                        NDArray before = w.duplicate();
                        try (FusedSoftmaxHead fused =
                                new FusedSoftmaxHead(
                                        group,
                                        Cut.balanced(4, ranks),
                                        ALL,
                                        1,
                                        HeadOptions.DEFAULT)) {
                            NDArray label = manager.create(new long[] {3});
                            float value =
                                    fused.evaluate(x, w, null, label, options).value().getFloat();
                            Assert.assertEquals(value, loss, 1e-6);
                            fused.update(w, null, null, rateOne(), 1, null);
                        }
                        NDArray difference = before.sub(w);
                        assertClose(difference, gradient, (int) range.start(), "gradient");
                    });
        }
    }

    /** Megatron-LM's fixture: logits 0 to 7, repeated over 128 classes, and even labels. */
    @Test(timeOut = 60_000)
    public void theFixtureOfMegatron() throws Exception {
        double[] expected = {10.2309, 8.2309, 6.2309, 4.2309};
        RankThreads.run(
                4,
                (group, manager) -> {
                    ShardRange range = Cut.balanced(128, 4).getRange(group.getRank());
                    NDArray x = manager.ones(new Shape(1, 1));
                    NDArray w = manager.arange(32f).mod(8).reshape(32, 1);
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(
                                    group, Cut.balanced(128, 4), ALL, 5, HeadOptions.DEFAULT)) {
                        for (int i = 0; i < 16; i++) {
                            NDArray label = manager.create(new long[] {2L * i});
                            float value =
                                    fused.evaluate(x, w, null, label, PLAIN).value().getFloat();
                            Assert.assertEquals(value, expected[i % 4], 1e-4);
                        }
                    }
                });
    }

    /** Rows that do not count have no loss and no gradient, nor has a batch of nothing else. */
    @Test(timeOut = 60_000)
    public void rowsMayBeIgnored() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.ones(new Shape(2, 1));
                    NDArray w = manager.arange(23f).reshape(23, 1);
                    NDArray before = w.duplicate();
                    try (FusedSoftmaxHead fused = whole(4, ALL)) {
                        NDArray labels = manager.create(new long[] {-100, -100});
                        FusedSoftmaxHead.Result result = fused.evaluate(x, w, null, labels, SMOOTH);
                        Assert.assertEquals(result.value().getFloat(), 0f);
                        Assert.assertEquals(result.gradient().abs().sum().getFloat(), 0f);
                        fused.update(w, null, null, rateOne(), 1, null);
                        Assert.assertEquals(w, before);
                        labels = manager.create(new long[] {-100, 5});
                        result = fused.evaluate(x, w, null, labels, PLAIN);
                        Assert.assertEquals(result.gradient().getFloat(0), 0f);
                        Assert.assertTrue(result.gradient().getFloat(1) != 0);
                    }
                });
    }

    /**
     * One logit far above or below the other: exponentials of the logits as they are would be
     * infinite or zero.
     */
    @Test(timeOut = 60_000)
    public void anyDistanceOfLogitsIsRight() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    for (float high : new float[] {-200, -50, 0, 20, 60, 69, 80, 89, 200}) {
                        NDArray x = manager.ones(new Shape(1, 1));
                        NDArray w = manager.create(new float[] {high, 0.5f, high}, new Shape(3, 1));
                        NDArray before = w.duplicate();
                        try (FusedSoftmaxHead fused =
                                new FusedSoftmaxHead(
                                        null, Cut.ofLengths(3), ALL, 1, HeadOptions.DEFAULT)) {
                            NDArray label = manager.create(new long[] {1});
                            float value =
                                    fused.evaluate(x, w, null, label, PLAIN).value().getFloat();
                            double expected = Math.log1p(2 * Math.exp(high - 0.5));
                            expected = Double.isInfinite(expected) ? high : expected;
                            Assert.assertEquals(value, expected, 1e-6 * (1 + expected), "" + high);
                            fused.update(w, null, null, rateOne(), 1, null);
                        }
                        double share = 1 / (2 + Math.exp(0.5 - high));
                        assertClose(before.sub(w), new double[] {share, -2 * share, share}, 0, "");
                    }
                });
    }

    /** Logits of ten thousand, and a rank whose classes are all far below. */
    @Test(timeOut = 60_000)
    public void largeLogitsStayFinite() throws Exception {
        RankThreads.run(
                2,
                (group, manager) -> {
                    float own = group.getRank() == 0 ? -1e4f : 1e4f;
                    NDArray x = manager.ones(new Shape(2, 1));
                    NDArray w = manager.create(new float[] {own, own, own - 2}, new Shape(3, 1));
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(
                                    group, Cut.ofLengths(3, 3), ALL, 1, HeadOptions.DEFAULT)) {
                        FusedSoftmaxHead.Result result =
                                fused.evaluate(
                                        x, w, null, manager.create(new long[] {3, 0}), PLAIN);
                        double sum = Math.log(2 + Math.exp(-2));
                        Assert.assertEquals(result.value().getFloat(), sum + 1e4, 1e-2);
                        fused.update(w, null, null, rateOne(), 1, null);
                        Assert.assertTrue(Float.isFinite(w.sum().getFloat()));
                    }
                });
    }

    /** 16-bit weights and features: computed in 32 bits, and the gradient comes back in 16. */
    @Test(timeOut = 60_000)
    public void sixteenBits() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        for (ScalarType type : List.of(ScalarType.BFloat16, ScalarType.Half)) {
            RankThreads.run(
                    1,
                    (group, manager) -> {
                        NDArray x =
                                to(manager.create(reference.x, new Shape(ROWS, FEATURES)), type);
                        NDArray w =
                                to(
                                        manager.create(
                                                reference.weight, new Shape(CLASSES, FEATURES)),
                                        type);
                        NDArray wide = to(w, ScalarType.Float);
                        NDArray labels = manager.create(reference.labels);
                        try (FusedSoftmaxHead narrow = whole(4, ALL);
                                FusedSoftmaxHead full = whole(4, ALL)) {
                            FusedSoftmaxHead.Result a = narrow.evaluate(x, w, null, labels, PLAIN);
                            NDArray wideX = to(x, ScalarType.Float);
                            FusedSoftmaxHead.Result b =
                                    full.evaluate(wideX, wide, null, labels, PLAIN);
                            Assert.assertEquals(a.value().getFloat(), b.value().getFloat());
                            Assert.assertEquals(a.gradient().getDataType(), x.getDataType());
                            Assert.assertEquals(
                                    to(a.gradient(), ScalarType.Float),
                                    to(to(b.gradient(), type), ScalarType.Float));
                            narrow.update(w, null, null, rateOne(), 1, null);
                            full.update(wide, null, null, rateOne(), 1, null);
                            Assert.assertEquals(
                                    to(w, ScalarType.Float), to(to(wide, type), ScalarType.Float));
                        }
                    });
        }
    }

    /** DJL cannot make bfloat16. */
    private static NDArray to(NDArray array, ScalarType type) {
        return TensorView.toArray(TensorView.of(array).tensor().to(type), array.getManager());
    }

    private static FusedSoftmaxHead whole(long chunk, long budget) {
        return new FusedSoftmaxHead(
                null, Cut.ofLengths(CLASSES), budget, chunk, HeadOptions.DEFAULT);
    }

    /** Steps share their memory, and keep nothing else. */
    @Test(timeOut = 60_000)
    public void stepsTakeNoMoreMemory() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    Autograd.setThreads(2);
                    FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
                    NDArray w = manager.create(reference.weight).reshape(CLASSES, FEATURES);
                    WeightUpdate update =
                            WeightUpdate.adam(
                                    WeightUpdate.Settings.DEFAULT, .9f, .99f, 1e-8f, false);
                    update.begin(1e-3f, 1);
                    try (FusedSoftmaxHead fused = whole(4, 4L * ROWS * Float.BYTES * 3)) {
                        long pointers = 0;
                        for (int step = 0; step < 20; step++) {
                            try (NDManager scope = manager.newSubManager()) {
                                NDArray x = scope.create(reference.x, new Shape(ROWS, FEATURES));
                                NDArray labels = scope.create(reference.labels);
                                fused.evaluate(x, w, null, labels, PLAIN);
                                fused.update(w, null, null, update, 1, null);
                            }
                            if (step == 1) {
                                pointers = Pointer.totalCount();
                            }
                        }
                        Assert.assertEquals(Pointer.totalCount(), pointers);
                        update.close();
                    }
                });
    }

    /** A smaller last batch, and a larger one after it. */
    @Test(timeOut = 60_000)
    public void batchesMayDiffer() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    try (FusedSoftmaxHead fused = whole(4, ALL)) {
                        for (int rows : new int[] {ROWS, 3, 11, 1, ROWS}) {
                            FusedReference reference = new FusedReference(rows, FEATURES, CLASSES);
                            reference.compute(SMOOTH, false);
                            NDArray x = manager.create(reference.x, new Shape(rows, FEATURES));
                            NDArray w = manager.create(reference.weight);
                            w = w.reshape(CLASSES, FEATURES);
                            NDArray before = w.duplicate();
                            NDArray labels = manager.create(reference.labels);
                            FusedSoftmaxHead.Result result =
                                    fused.evaluate(x, w, null, labels, SMOOTH);
                            Assert.assertEquals(result.value().getFloat(), reference.loss, 1e-6);
                            fused.update(w, null, null, rateOne(), 1, null);
                            assertClose(
                                    before.sub(w), reference.weightGradient, 0, "dW of " + rows);
                        }
                    }
                });
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*too small.*7 rows of 4 classes take 112 bytes.*")
    public void aBudgetForLessThanAChunkIsRefused() throws Exception {
        evaluate(new FusedReference(ROWS, FEATURES, CLASSES), 111);
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp =
                    "The label of row 3 is 23, but the labels of 23 classes.*")
    public void aLabelThatIsNoClassIsRefused() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        reference.labels[3] = CLASSES;
        evaluate(reference, ALL);
    }

    @Test(
            expectedExceptions = ArithmeticException.class,
            expectedExceptionsMessageRegExp =
                    "The features hold NaN or infinite values on rank 0 in step 1;.*")
    public void featuresThatAreNoNumbersAreRefused() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        reference.x[3] = Float.POSITIVE_INFINITY;
        evaluate(reference, ALL);
    }

    /** All logits are then minus infinity, and all exponentials 0. */
    @Test(
            expectedExceptions = ArithmeticException.class,
            expectedExceptionsMessageRegExp = "The features hold NaN or infinite values.*")
    public void infiniteFeaturesOfNegativeWeightsAreRefused() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        reference.x[0] = Float.POSITIVE_INFINITY;
        for (int i = 0; i < CLASSES; i++) {
            reference.weight[i * FEATURES] = -1;
        }
        evaluate(reference, ALL);
    }

    @Test(
            expectedExceptions = ArithmeticException.class,
            expectedExceptionsMessageRegExp = "The logits hold NaN.*")
    public void weightsThatAreNoNumbersAreRefused() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        reference.weight[50] = Float.NaN;
        evaluate(reference, ALL);
    }

    private static void evaluate(FusedReference reference, long budget) throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.create(reference.x, new Shape(ROWS, FEATURES));
                    NDArray w = manager.create(reference.weight, new Shape(CLASSES, FEATURES));
                    try (FusedSoftmaxHead fused = whole(4, budget)) {
                        fused.evaluate(x, w, null, manager.create(reference.labels), PLAIN);
                    }
                });
    }

    @Test(expectedExceptions = IllegalStateException.class)
    public void anUpdateNeedsALoss() {
        try (NDManager manager = NDManager.newBaseManager();
                FusedSoftmaxHead fused = whole(4, ALL)) {
            fused.update(manager.ones(new Shape(CLASSES, 2)), null, null, rateOne(), 1, null);
        }
    }

    /** A part of the weight is updated then: the same gradient must not be added to it again. */
    @Test(timeOut = 60_000)
    public void aGradientWhoseUpdateFailedIsUsedUp() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.create(reference.x, new Shape(ROWS, FEATURES));
                    NDArray w = slice(manager, reference.weight, new ShardRange(0, CLASSES));
                    NDArray labels = manager.create(reference.labels);
                    NDArray before = w.duplicate();
                    NDArray wrong = manager.ones(new Shape(1, FEATURES + 1));
                    AddedGradient added = new AddedGradient(null, new long[] {CLASSES - 1}, wrong);
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(
                                    null, Cut.balanced(CLASSES, 1), ALL, 4, HeadOptions.DEFAULT)) {
                        fused.evaluate(x, w, null, labels, PLAIN);
                        Assert.expectThrows(
                                RuntimeException.class,
                                () -> fused.update(w, null, null, rateOne(), 1, added));
                        Assert.assertNotEquals(w, before, "the first chunks are updated");
                        NDArray half = w.duplicate();
                        Assert.expectThrows(
                                IllegalStateException.class,
                                () -> fused.update(w, null, null, rateOne(), 1, null));
                        Assert.assertEquals(w, half);
                    }
                });
    }

    /** As many threads as the calling thread has when a loss is computed. */
    @Test(timeOut = 60_000)
    public void theNumberOfThreadsMayChange() throws Exception {
        FusedReference reference = new FusedReference(ROWS, FEATURES, CLASSES);
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.create(reference.x, new Shape(ROWS, FEATURES));
                    NDArray w = slice(manager, reference.weight, new ShardRange(0, CLASSES));
                    NDArray labels = manager.create(reference.labels);
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(
                                    null, Cut.balanced(CLASSES, 1), ALL, 4, HeadOptions.DEFAULT)) {
                        for (int threads : new int[] {1, 3, 2}) {
                            Autograd.setThreads(threads);
                            fused.evaluate(x, w, null, labels, PLAIN);
                            Assert.assertEquals(fused.memory().threads(), threads);
                        }
                    }
                });
    }
}
