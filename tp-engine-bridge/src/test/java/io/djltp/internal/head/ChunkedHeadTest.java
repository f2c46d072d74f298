package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.sun.management.ThreadMXBean;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TorchScope;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestCases;

import org.bytedeco.javacpp.Pointer;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.function.Consumer;

/** The fused cross entropy is the whole one, however the classes are cut and the memory is. */
@SuppressWarnings("try") // a scope is used by being open
public class ChunkedHeadTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final long ALL = 1 << 20;
    private static final Cut ONE = Cut.ofLengths(CLASSES);

    private static final LossOptions PLAIN = HeadStep.PLAIN;
    private static final LossOptions SMOOTH = HeadStep.SMOOTH;

    private static HeadReference data() {
        return new HeadReference(ROWS, FEATURES, CLASSES);
    }

    @DataProvider
    public Object[][] cases() {
        Integer[] ranks = {1, 2, 3, 4};
        LossOptions[] options = {PLAIN, SMOOTH, HeadStep.EVERYTHING};
        return TestCases.concat(
                TestCases.product(ranks, options, new Integer[] {0, 1, 100}, new Integer[] {1}),
                TestCases.product(ranks, options, new Integer[] {3}, new Integer[] {2}),
                TestCases.product(ranks, options, new Integer[] {100}, new Integer[] {3}));
    }

    /** Chunks of four classes, of which none, some or all are kept, in one or several lanes. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsTheWhole(int ranks, LossOptions options, int kept, int lanes)
            throws Exception {
        HeadReference data = data().withSpecialLabels().compute(options, true);
        long budget = (kept + 1) * 4L * (ROWS + 1) * Float.BYTES;
        HeadStep.Way way = new HeadStep.Way(Cut.balanced(CLASSES, ranks), budget, 4, lanes, true);
        HeadStep.updated(data, way, HeadStep.FLOAT32, options).assertClose(data, 2e-6);
    }

    @DataProvider
    public Object[][] bits() {
        float[] weights = new float[300];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = i % 5 / 3f;
        }
        return new Object[][] {
            {1, 300, PLAIN},
            {7, 300, PLAIN},
            {64, 300, PLAIN},
            {65, 2, PLAIN},
            {33, 300, PLAIN.withReduction(Reduction.SUM)},
            {33, 300, PLAIN.withClassWeights(weights)},
        };
    }

    /** The second rank has no class. */
    @Test(dataProvider = "bits", timeOut = 60_000)
    public void aRankAloneHasTheBitsOfSeveral(int rows, int classes, LossOptions options)
            throws Exception {
        HeadReference data = new HeadReference(rows, 16, classes);
        if (rows > 2) {
            data.labels[1] = options.ignoreIndex();
        }
        HeadStep alone = unbiased(data, Cut.ofLengths(classes), 16, options);
        HeadStep together = unbiased(data, Cut.ofLengths(classes, 0), 16, options);
        Assert.assertEquals(together.loss, alone.loss);
        Assert.assertEquals(together.ofFeatures, alone.ofFeatures);
        Assert.assertEquals(together.ofWeight, alone.ofWeight);
    }

    private static HeadStep unbiased(HeadReference data, Cut cut, long chunk, LossOptions options)
            throws Exception {
        HeadStep.Way way = new HeadStep.Way(cut, ALL, chunk, 1, false);
        return HeadStep.updated(data, way, HeadStep.FLOAT32, options);
    }

    /** Returns a batch whose features are ones, so that weights are logits. */
    private static HeadReference ones(int rows, double... logits) {
        HeadReference data = new HeadReference(rows, 1, logits.length);
        Arrays.fill(data.x, 1);
        System.arraycopy(logits, 0, data.weight, 0, logits.length);
        return data;
    }

    @DataProvider
    public Object[][] hand() {
        return new Object[][] {
            {PLAIN, 0.4401897, new double[] {.0320586, .0871443, .2368828, -.3560857}},
            {SMOOTH, 0.5901897, new double[] {.0070586, .0621443, .2118828, -.2810857}},
            {
                new LossOptions(-100, 0, 0.01f),
                0.5585388,
                new double[] {.0342644, .0931402, .2531813, -.3117820}
            }
        };
    }

    /** The logits 0 to 3 and the label 3. */
    @Test(dataProvider = "hand", timeOut = 60_000)
    public void equalsWhatIsComputedByHand(LossOptions options, double loss, double[] gradient)
            throws Exception {
        HeadReference data = ones(1, 0, 1, 2, 3);
        data.labels[0] = 3;
        for (int ranks : new int[] {1, 2, 4}) {
            HeadStep step = unbiased(data, Cut.balanced(4, ranks), 1, options);
            Assert.assertEquals(step.loss, loss, 1e-6);
            HeadStep.assertClose(step.ofWeight, gradient, 2e-6, "gradient");
        }
    }

    /** Where the label has all of the softmax, its entropy is rounded, sometimes below 0. */
    @Test(timeOut = 60_000)
    public void theFocalLossOfKnownRowsIsZero() throws Exception {
        int rows = 500;
        HeadReference data = ones(rows, -40, -0.1, -40);
        Arrays.setAll(data.x, i -> 1 + i / 5000f);
        Arrays.fill(data.labels, 1);
        HeadStep step = unbiased(data, Cut.ofLengths(3), 3, PLAIN.withFocusing(1.5f));
        Assert.assertEquals(step.loss, 0f, 1e-20f);
        HeadStep.assertClose(step.ofWeight, new double[3], 1e-20, "gradient");
    }

    /** Megatron-LM's fixture: logits 0 to 7, repeated over 128 classes, and even labels. */
    @Test(timeOut = 60_000)
    public void theFixtureOfMegatron() throws Exception {
        double[] expected = {10.2309, 8.2309, 6.2309, 4.2309};
        HeadReference data = ones(1, new double[128]);
        Arrays.setAll(data.weight, k -> k % 8);
        for (int i = 0; i < 16; i++) {
            data.labels[0] = 2L * i;
            float value = unbiased(data, Cut.balanced(128, 4), 5, PLAIN).loss;
            Assert.assertEquals(value, expected[i % 4], 1e-4);
        }
    }

    /** Rows that do not count have no loss and no gradient, nor has a batch of nothing else. */
    @Test(timeOut = 60_000)
    public void rowsMayBeIgnored() throws Exception {
        HeadReference data = ones(2, new double[CLASSES]);
        Arrays.setAll(data.weight, k -> k);
        Arrays.fill(data.labels, -100);
        HeadStep none = unbiased(data, ONE, 4, SMOOTH);
        Assert.assertEquals(none.loss, 0f);
        Assert.assertEquals(none.ofFeatures, new float[2]);
        Assert.assertEquals(none.ofWeight, new float[CLASSES]);
        data.labels[1] = 5;
        HeadStep one = unbiased(data, ONE, 4, PLAIN);
        Assert.assertEquals(one.ofFeatures[0], 0f);
        Assert.assertTrue(one.ofFeatures[1] != 0);
    }

    /**
     * One logit far above or below the other: exponentials of the logits as they are would be
     * infinite or zero.
     */
    @Test(timeOut = 60_000)
    public void anyDistanceOfLogitsIsRight() throws Exception {
        for (float high : new float[] {-200, -50, 0, 20, 60, 69, 80, 89, 200}) {
            HeadReference data = ones(1, high, 0.5, high);
            data.labels[0] = 1;
            HeadStep step = unbiased(data, Cut.ofLengths(3), 1, PLAIN);
            double expected = Math.log1p(2 * Math.exp(high - 0.5));
            expected = Double.isInfinite(expected) ? high : expected;
            Assert.assertEquals(step.loss, expected, 1e-6 * (1 + expected), "" + high);
            double share = 1 / (2 + Math.exp(0.5 - high));
            // of weights of 200, of which the gradient is taken
            double[] gradient = {share, -2 * share, share};
            HeadStep.assertClose(step.ofWeight, gradient, 2e-6 + Math.ulp(high), "" + high);
        }
    }

    /** Logits of ten thousand, and a rank whose classes are all far below. */
    @Test(timeOut = 60_000)
    public void largeLogitsStayFinite() throws Exception {
        HeadReference data = ones(2, -1e4, -1e4, -1e4 - 2, 1e4, 1e4, 1e4 - 2);
        data.labels[0] = 3;
        data.labels[1] = 0;
        HeadStep step = unbiased(data, Cut.ofLengths(3, 3), 1, PLAIN);
        Assert.assertEquals(step.loss, Math.log(2 + Math.exp(-2)) + 1e4, 1e-2);
        for (float each : step.ofWeight) {
            Assert.assertTrue(Float.isFinite(each));
        }
    }

    /**
     * Rows whose label has nearly all of the softmax. The logits are about 40, where neighbours of
     * float32 are 3.8e-6 apart; the loss is \(\log \sum_k \exp(z_k - z_y)\), of which the rounding
     * of \(z_y\) is no part: the float32 sum of the exponentials leaves 4 roundings, with
     * logarithm.
     */
    @Test(timeOut = 60_000)
    public void roundingOfLargeLogitsIsNotInTheLoss() throws Exception {
        int features = 24;
        int classes = 11;
        for (int i = 0; i < 40; i++) { // one at a time: their errors would be averaged
            HeadReference data = new HeadReference(1, features, classes);
            data.labels[0] = i % classes;
            Random random = new Random(i);
            Arrays.setAll(data.x, j -> (float) random.nextGaussian());
            double square = Arrays.stream(data.x).map(each -> each * each).sum();
            for (int k = 0; k < classes; k++) {
                double logit = k == data.labels[0] ? 40 : 30 + 5 * random.nextDouble();
                for (int j = 0; j < features; j++) {
                    data.weight[k * features + j] = (float) (logit * data.x[j] / square);
                }
            }
            double[] logits = data.logits(0, false);
            double label = logits[i % classes];
            double expected = Math.log(Arrays.stream(logits).map(z -> Math.exp(z - label)).sum());
            for (int ranks : new int[] {1, 3}) {
                float loss = unbiased(data, Cut.balanced(classes, ranks), 4, PLAIN).loss;
                Assert.assertEquals(loss, expected, 4 * Math.scalb(1, -24), "row " + i);
            }
        }
    }

    /** Steps share their memory, and keep nothing else. */
    @Test(timeOut = 60_000)
    public void stepsTakeNoMoreMemory() throws Exception {
        assertConstantMemory(HeadStep.FLOAT32, ReferenceUpdate.Kind.ADAM, 2, 20);
    }

    /** The first steps take the memory; others, of fewer rows too, add nothing. */
    static void assertConstantMemory(
            HeadOptions head, ReferenceUpdate.Kind kind, int lanes, int steps) throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    Autograd.setThreads(lanes);
                    HeadReference data = data();
                    NDArray w = data.weight(manager);
                    // memory for three chunks of 4 classes, of which one or two are kept
                    try (ChunkedHead fused =
                                    new ChunkedHead(
                                            null, ONE, 4L * (ROWS + 1) * Float.BYTES * 3, 4, head);
                            WeightUpdate update = kind.update(WeightUpdate.Settings.DEFAULT)) {
                        long pointers = 0;
                        for (int step = 1; step <= steps; step++) {
                            try (NDManager scope = manager.newSubManager()) {
                                String rows = step % 2 == 0 ? ":" : "0:4";
                                NDArray x = data.x(scope).get(rows);
                                NDArray labels = data.labels(scope).get(rows);
                                HeadStep.train(fused, x, w, labels, update, step);
                            }
                            pointers = step == steps / 2 ? Pointer.totalCount() : pointers;
                        }
                        // fewer, if the collector finds some of an earlier test meanwhile
                        long now = Pointer.totalCount();
                        Assert.assertTrue(now <= pointers, pointers + " became " + now);
                    }
                });
    }

    /** A smaller last batch, and a larger one after it. */
    @Test(timeOut = 60_000)
    public void batchesMayDiffer() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    try (ChunkedHead fused = whole(ALL)) {
                        for (int rows : new int[] {ROWS, 3, 11, 1, ROWS}) {
                            HeadReference data = new HeadReference(rows, FEATURES, CLASSES);
                            data.compute(SMOOTH, false);
                            NDArray w = data.weight(manager);
                            NDArray before = w.duplicate();
                            float loss =
                                    fused.evaluate(
                                                    data.x(manager),
                                                    w,
                                                    null,
                                                    data.labels(manager),
                                                    SMOOTH)
                                            .value()
                                            .getFloat();
                            Assert.assertEquals(loss, data.loss, 1e-6);
                            fused.update(w, null, null, HeadStep.rateOne(), 1, null);
                            float[] moved = before.sub(w).toFloatArray();
                            HeadStep.assertClose(moved, data.ofWeight, 2e-6, "dW of " + rows);
                        }
                    }
                });
    }

    private static ChunkedHead whole(long budget) {
        return new ChunkedHead(null, ONE, budget, 4, HeadStep.FLOAT32);
    }

    @DataProvider
    public Object[][] bad() {
        Consumer<HeadReference> good = data -> {};
        Consumer<HeadReference> noClass = data -> data.labels[3] = CLASSES;
        Consumer<HeadReference> infinite = data -> data.x[3] = Float.POSITIVE_INFINITY;
        Consumer<HeadReference> noLogits = // all are minus infinity, and all exponentials 0
                data -> {
                    data.x[0] = Float.POSITIVE_INFINITY;
                    for (int i = 0; i < CLASSES; i++) {
                        data.weight[i * FEATURES] = -1;
                    }
                };
        Consumer<HeadReference> weight = data -> data.weight[50] = Float.NaN;
        String features = "The features hold NaN or infinite values on rank 0 in step 1;";
        return new Object[][] {
            {
                good,
                111,
                "too small for the logits of one chunk: 7 rows of 4 classes take 112 bytes"
            },
            {noClass, ALL, "The label of row 3 is 23, but the labels of 23 classes"},
            {infinite, ALL, features},
            {noLogits, ALL, features},
            {weight, ALL, "The logits hold NaN"}
        };
    }

    @Test(dataProvider = "bad", timeOut = 60_000)
    public void whatHasNoLossThrows(Consumer<HeadReference> change, long budget, String message) {
        HeadReference data = data();
        change.accept(data);
        HeadStep.Way way = new HeadStep.Way(ONE, budget, 4, 1, false);
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () -> HeadStep.updated(data, way, HeadStep.FLOAT32, PLAIN));
        boolean argument = message.contains("too small") || message.contains("label");
        Assert.assertEquals(
                e.getClass(),
                argument ? IllegalArgumentException.class : ArithmeticException.class);
        Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
    }

    /** All ranks know of each whether its numbers are of use, and make the same passes. */
    @Test(timeOut = 60_000)
    public void numbersOfOneRankEndTheLossOnAll() throws Exception {
        HeadReference data = data();
        Cut cut = Cut.balanced(CLASSES, 3);
        data.weight[10 * FEATURES] = Double.NaN;
        RankThreads.run(
                3,
                (group, manager) -> {
                    NDArray w = data.weight(manager, cut.getRanges(group.getRank()));
                    try (ChunkedHead fused =
                            new ChunkedHead(group, cut, ALL, 4, HeadStep.FLOAT32)) {
                        Refusals.expect(
                                ArithmeticException.class,
                                () ->
                                        fused.evaluate(
                                                data.x(manager),
                                                w,
                                                null,
                                                data.labels(manager),
                                                PLAIN),
                                "on rank 1 ");
                    }
                });
    }

    /** The logits of a chunk, in bytes, for the classes of a rank with a GPU. */
    @Test
    public void chunksOfGpusFitTheirCache() {
        for (long rows : new long[] {16, 64, 1000, 8192}) {
            ChunkPlan plan = ChunkPlan.of(rows, 128, 1_000_000, 0, 1L << 30, 4, 1, true)[0];
            long bytes = plan.chunk() * rows * Float.BYTES;
            Assert.assertTrue(bytes > 4 << 20 && bytes <= 16 << 20, rows + " rows: " + bytes);
        }
    }

    /** The loss before it is none, either: its batch is another one. */
    @Test(timeOut = 60_000)
    public void aLossThatIsRefusedIsNoneToUpdateBy() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    HeadReference data = data();
                    NDArray w = data.weight(manager);
                    NDArray x = data.x(manager);
                    NDArray labels = data.labels(manager);
                    try (ChunkedHead fused = whole(ALL)) {
                        fused.evaluate(x, w, null, labels, PLAIN);
                        LossOptions bad = PLAIN.withClassWeights(1, 2);
                        Refusals.throwsArgument(() -> fused.evaluate(x, w, null, labels, bad));
                        WeightUpdate update = HeadStep.rateOne();
                        Refusals.throwsState(() -> fused.update(w, null, null, update, 1, null));
                    }
                });
    }

    @Test(expectedExceptions = IllegalStateException.class)
    public void anUpdateNeedsALoss() {
        try (NDManager manager = NDManager.newBaseManager();
                ChunkedHead fused = whole(ALL)) {
            NDArray w = manager.ones(new Shape(CLASSES, 2));
            fused.update(w, null, null, HeadStep.rateOne(), 1, null);
        }
    }

    /** A part of the weight is updated then: the same gradient must not be added to it again. */
    @Test(timeOut = 60_000)
    public void aGradientWhoseUpdateFailedIsUsedUp() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    HeadReference data = data();
                    NDArray w = data.weight(manager);
                    NDArray before = w.duplicate();
                    NDArray wrong = manager.ones(new Shape(1, FEATURES + 1));
                    AddedGradient added = new AddedGradient(null, new long[] {CLASSES - 1}, wrong);
                    WeightUpdate update = HeadStep.rateOne();
                    try (ChunkedHead fused = whole(ALL)) {
                        fused.evaluate(data.x(manager), w, null, data.labels(manager), PLAIN);
                        Assert.expectThrows(
                                RuntimeException.class,
                                () -> fused.update(w, null, null, update, 1, added));
                        Assert.assertNotEquals(w, before, "the first chunks are updated");
                        NDArray half = w.duplicate();
                        Refusals.throwsState(() -> fused.update(w, null, null, update, 1, null));
                        Assert.assertEquals(w, half);
                    }
                });
    }

    /** As many threads as the calling thread has when a loss is computed. */
    @Test(timeOut = 60_000)
    public void theNumberOfThreadsMayChange() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    HeadReference data = data();
                    NDArray w = data.weight(manager);
                    try (ChunkedHead fused = whole(ALL)) {
                        for (int threads : new int[] {1, 3, 2}) {
                            Autograd.setThreads(threads);
                            fused.evaluate(data.x(manager), w, null, data.labels(manager), PLAIN);
                            Assert.assertEquals(fused.memory().threads(), threads);
                        }
                    }
                });
    }

    /** The rows of a tied embedding are put in order without an object for each. */
    @Test
    public void lookedUpRowsAreSortedWithoutBoxes() {
        long[] places = new SplittableRandom(1).longs(100_000, 0, 1_000_000).toArray();
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        try (NDManager manager = NDManager.newBaseManager();
                TorchScope scope = TorchScope.withoutGraph()) {
            NDArray rows = manager.zeros(new Shape(places.length, 1));
            AddedGradient added = new AddedGradient(null, places, rows);
            AddedGradient.Chunks.of(added); // loads classes
            long before = threads.getCurrentThreadAllocatedBytes();
            AddedGradient.Chunks.of(added);
            double bytes = threads.getCurrentThreadAllocatedBytes() - before;
            Assert.assertTrue(bytes < 20.0 * places.length, bytes / places.length + " a row");
        }
    }
}
