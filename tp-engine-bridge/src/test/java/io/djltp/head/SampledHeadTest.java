package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/** The loss over drawn classes, and with margins, is what their definitions say. */
public class SampledHeadTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final long SEED = 9;

    private static final List<ShardRange> ALL_ROWS = List.of(new ShardRange(0, ROWS));

    private static final LossOptions EVERYTHING = new LossOptions(3, 0.2f, 0.02f);

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        Margin[] margins = {
            null,
            Margin.arcFace(8, 0.5f),
            Margin.cosFace(64, 0.35f),
            Margin.combined(16, 1.1f, 0.2f, 0.1f)
        };
        for (Cut cut : cuts()) {
            for (Margin margin : margins) {
                for (float share : new float[] {1, 0.7f, 0.3f}) {
                    cases.add(new Object[] {cut, margin, share, LossOptions.DEFAULT, 0});
                    cases.add(new Object[] {cut, margin, share, EVERYTHING, 100});
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** Balanced cuts, an uneven one, one with an empty shard, and one of several ranges a rank. */
    private static List<Cut> cuts() {
        List<Cut> cuts = new ArrayList<>();
        for (int ranks = 1; ranks <= 4; ranks++) {
            cuts.add(Cut.balanced(CLASSES, ranks));
        }
        cuts.add(Cut.ofLengths(17, 0, 5, 1));
        cuts.add(
                Cut.of(
                        CLASSES,
                        2,
                        rank ->
                                rank == 0
                                        ? List.of(new ShardRange(0, 3), new ShardRange(11, 4))
                                        : List.of(new ShardRange(3, 8), new ShardRange(15, 8))));
        return cuts;
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsTheDefinition(
            Cut cut, Margin margin, float share, LossOptions options, int kept) throws Exception {
        HeadReference reference = new HeadReference(ROWS, FEATURES, CLASSES, options, margin);
        reference.labels[2] = 3;
        reference.labels[4] = reference.labels[5]; // two rows of one class
        reference.used = drawn(reference, share, options, 0);
        int ranks = cut.getRanks();
        double[] byX = reference.gradient(reference.x);
        double[] byWeight = reference.gradient(reference.weight);
        double[] byBias = reference.gradient(reference.bias);
        long budget = (kept + 1) * 4L * (ROWS + 1) * Float.BYTES;
        HeadOptions head = new HeadOptions(share, SEED, margin);
        RankThreads.run(
                ranks,
                (group, manager) -> {
                    List<ShardRange> own = cut.getRanges(group.getRank());
                    NDArray w = slice(manager, reference.weight, own, FEATURES);
                    NDArray b = slice(manager, reference.bias, own, 1).flatten();
                    NDArray biasGradient = manager.ones(b.getShape());
                    NDArray before = w.duplicate();
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(group, cut, budget, 4, head)) {
                        CollectiveCounts start = group.getCounts();
                        FusedSoftmaxHead.Result result =
                                fused.evaluate(
                                        x(manager, reference),
                                        w,
                                        margin == null ? b : null,
                                        manager.create(reference.labels),
                                        options);
                        long calls = group.getCounts().minus(start).total();
                        Assert.assertEquals(calls, ranks == 1 ? 0 : 2);
                        double loss = reference.loss();
                        Assert.assertEquals(result.value().getFloat(), loss, 1e-5 * loss);
                        WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
                        update.begin(1, 1);
                        fused.update(
                                w,
                                margin == null ? b : null,
                                margin == null ? biasGradient : null,
                                update,
                                0.5f,
                                null);
                        group.allReduce(result.gradient(), ReduceOp.SUM);
                        assertClose(result.gradient(), byX, ALL_ROWS, FEATURES, "dX");
                    }
                    assertClose(before.sub(w).mul(2f), byWeight, own, FEATURES, "dW");
                    if (margin == null) {
                        assertClose(biasGradient.mul(2f), byBias, own, 1, "db");
                    }
                    assertOthersUntouched(before, w, reference.used, own);
                });
    }

    /** Returns the classes of a step: those that one rank draws. */
    private static int[] drawn(
            HeadReference reference, float share, LossOptions options, int step) {
        if (share == 1) {
            return IntStream.range(0, CLASSES).toArray();
        }
        long[] labels =
                Arrays.stream(reference.labels)
                        .filter(l -> l != options.ignoreIndex())
                        .sorted()
                        .toArray();
        ClassShard all = new ClassShard(Cut.ofLengths(CLASSES), null);
        return Arrays.stream(new ClassSampler(all, share, SEED).draw(step, labels))
                .mapToInt(c -> (int) c)
                .toArray();
    }

    private static NDArray x(NDManager manager, HeadReference reference) {
        return manager.create(HeadReference.floats(reference.x), new Shape(ROWS, FEATURES));
    }

    private static NDArray slice(
            NDManager manager, double[] all, List<ShardRange> ranges, int columns) {
        double[] part = part(all, ranges, columns);
        return manager.create(
                HeadReference.floats(part), new Shape(part.length / columns, columns));
    }

    private static double[] part(double[] all, List<ShardRange> ranges, int columns) {
        return classes(ranges)
                .flatMap(k -> IntStream.range(k * columns, (k + 1) * columns))
                .mapToDouble(i -> all[i])
                .toArray();
    }

    private static IntStream classes(List<ShardRange> ranges) {
        return ranges.stream().flatMapToInt(r -> IntStream.range((int) r.start(), (int) r.end()));
    }

    private static void assertClose(
            NDArray actual, double[] all, List<ShardRange> ranges, int columns, String what) {
        double largest = Arrays.stream(all).map(Math::abs).max().getAsDouble();
        double[] expected = part(all, ranges, columns);
        float[] values = actual.toFloatArray();
        Assert.assertEquals(values.length, expected.length);
        for (int i = 0; i < values.length; i++) {
            Assert.assertEquals(values[i], expected[i], 1e-5 * largest, what + " " + i);
        }
    }

    private static void assertOthersUntouched(
            NDArray before, NDArray after, int[] used, List<ShardRange> ranges) {
        int[] classes = classes(ranges).toArray();
        for (int k = 0; k < classes.length; k++) {
            if (Arrays.binarySearch(used, classes[k]) < 0) {
                Assert.assertEquals(
                        after.get(k).toFloatArray(), before.get(k).toFloatArray(), "row " + k);
            }
        }
    }

    @DataProvider
    public Object[][] optimizers() {
        WeightUpdate.Settings decay = new WeightUpdate.Settings(0.1f, 1, -1);
        WeightUpdate.Settings all = new WeightUpdate.Settings(0.1f, 2, 0.05f);
        List<Object[]> cases = new ArrayList<>();
        for (WeightUpdate.Settings settings : List.of(WeightUpdate.Settings.DEFAULT, decay, all)) {
            for (ReferenceUpdate.Kind kind : ReferenceUpdate.Kind.values()) {
                cases.add(new Object[] {kind, settings, null});
                cases.add(new Object[] {kind, settings, Margin.arcFace(8, 0.3f)});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** Five steps, in which rows are drawn now and then: what was not drawn waits as it is. */
    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void updatesTheDrawnRowsAlone(
            ReferenceUpdate.Kind kind, WeightUpdate.Settings settings, Margin margin)
            throws Exception {
        float share = 0.5f;
        List<HeadReference> steps = new ArrayList<>();
        double[] expected = expected(kind, settings, margin, share, steps);
        for (Cut cut : List.of(Cut.balanced(CLASSES, 1), Cut.ofLengths(9, 13, 1))) {
            RankThreads.run(
                    cut.getRanks(),
                    (group, manager) -> {
                        List<ShardRange> own = cut.getRanges(group.getRank());
                        NDArray w = slice(manager, steps.get(0).weight, own, FEATURES);
                        HeadOptions head = new HeadOptions(share, SEED, margin);
                        try (WeightUpdate update = kind.update(settings);
                                FusedSoftmaxHead fused =
                                        new FusedSoftmaxHead(group, cut, 1 << 20, 4, head)) {
                            for (int i = 0; i < steps.size(); i++) {
                                HeadReference step = steps.get(i);
                                NDArray before = w.duplicate();
                                fused.evaluate(
                                        x(manager, step),
                                        w,
                                        null,
                                        manager.create(step.labels),
                                        LossOptions.DEFAULT);
                                update.begin(0.1f, i + 1);
                                fused.update(w, null, null, update, 1, null);
                                assertOthersUntouched(before, w, step.used, own);
                            }
                        }
                        assertClose(w, expected, own, FEATURES, "weight");
                    });
        }
    }

    private static double[] expected(
            ReferenceUpdate.Kind kind,
            WeightUpdate.Settings settings,
            Margin margin,
            float share,
            List<HeadReference> steps) {
        ReferenceUpdate update = new ReferenceUpdate(kind, settings, CLASSES, FEATURES);
        SplittableRandom random = new SplittableRandom(1);
        double[] weight = null;
        for (int i = 0; i < 5; i++) {
            HeadReference step =
                    new HeadReference(ROWS, FEATURES, CLASSES, LossOptions.DEFAULT, margin);
            Arrays.fill(step.bias, 0);
            double[] x = HeadReference.values(random, step.x.length);
            System.arraycopy(x, 0, step.x, 0, x.length);
            Arrays.setAll(step.labels, row -> random.nextInt(CLASSES));
            step.used = drawn(step, share, LossOptions.DEFAULT, i);
            if (weight == null) {
                weight = step.weight.clone();
            }
            double[] first = step.weight.clone();
            System.arraycopy(weight, 0, step.weight, 0, weight.length);
            update.apply(weight, step.gradient(step.weight), step.used, 0.1, i + 1);
            System.arraycopy(first, 0, step.weight, 0, first.length);
            steps.add(step);
        }
        return weight;
    }

    @DataProvider
    public Object[][] hand() {
        return new Object[][] {
            // cos(acos 0.6 + 0.5) = 0.1430091, of the slope sin(1.4272952)/0.8 = 1.2371517
            {
                Margin.arcFace(2, 0.5f),
                1.5520122,
                new double[] {-.4009550, .3007163},
                new double[] {0, -.7800773, .1891629, 0}
            },
            // 0.6 - 0.35, of the slope 1
            {
                Margin.cosFace(2, 0.35f),
                1.3873353,
                new double[] {-.3361165, .2520874},
                new double[] {0, -.6002081, .1800624, 0}
            },
            // cos(1.25 acos 0.6 + 0.2) - 0.1 = 0.1101001, of the slope 1.5276248
            {
                Margin.combined(2, 1.25f, 0.2f, 0.1f),
                1.6042457,
                new double[] {-.4658505, .3493879},
                new double[] {0, -.9764075, .1917501, 0}
            }
        };
    }

    /**
     * The features (3, 4) have the direction (0.6, 0.8), the classes (2, 0) and (0, 5) have (1, 0)
     * and (0, 1), and the label is the first: the cosines are 0.6 and 0.8, the logits z = 2 phi and
     * 1.6, and the loss is log(1 + exp(1.6 - z)). With the probability p of the second class the
     * cosines have the gradients d = (-2 p slope, 2 p); the features (d1 ((1, 0) - 0.6 (0.6, 0.8))
     * + d2 ((0, 1) - 0.8 (0.6, 0.8))) / 5; and the classes d1 ((0.6, 0.8) - 0.6 (1, 0)) / 2 and d2
     * ((0.6, 0.8) - 0.8 (0, 1)) / 5.
     */
    @Test(dataProvider = "hand", timeOut = 60_000)
    public void equalsWhatIsComputedByHand(
            Margin margin, double loss, double[] byX, double[] byWeight) throws Exception {
        for (int ranks : new int[] {1, 2}) {
            RankThreads.run(
                    ranks,
                    (group, manager) -> {
                        ShardRange range = Cut.balanced(2, ranks).getRange(group.getRank());
                        NDArray w = manager.create(new float[] {2, 0, 0, 5}, new Shape(2, 2));
                        w = w.get(new NDIndex().addSliceDim(range.start(), range.end()));
                        w = w.duplicate();
                        NDArray before = w.duplicate();
                        NDArray x = manager.create(new float[] {3, 4}, new Shape(1, 2));
                        NDArray label = manager.create(new long[] {0});
                        HeadOptions head = new HeadOptions(1, 0, margin);
                        try (FusedSoftmaxHead fused =
                                new FusedSoftmaxHead(
                                        group, Cut.balanced(2, ranks), 1 << 20, 1, head)) {
                            FusedSoftmaxHead.Result result =
                                    fused.evaluate(x, w, null, label, LossOptions.DEFAULT);
                            Assert.assertEquals(result.value().getFloat(), loss, 1e-6);
                            group.allReduce(result.gradient(), ReduceOp.SUM);
                            assertClose(
                                    result.gradient(), byX, List.of(new ShardRange(0, 1)), 2, "dX");
                            WeightUpdate update =
                                    WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
                            update.begin(1, 1);
                            fused.update(w, null, null, update, 1, null);
                        }
                        assertClose(before.sub(w), byWeight, List.of(range), 2, "dW");
                    });
        }
    }

    /** Features and weights of zeros have no direction: nothing pulls at them, nor turns to NaN. */
    @Test(timeOut = 60_000)
    public void rowsOfZerosStay() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.create(new float[] {0, 0, 1, 2}, new Shape(2, 2));
                    NDArray w = manager.create(new float[] {0, 0, 1, 0, 3, 1}, new Shape(3, 2));
                    HeadOptions head = new HeadOptions(1, 0, Margin.arcFace(8, 0.5f));
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(null, Cut.ofLengths(3), 1 << 20, 0, head)) {
                        NDArray labels = manager.create(new long[] {1, 0});
                        FusedSoftmaxHead.Result result =
                                fused.evaluate(x, w, null, labels, LossOptions.DEFAULT);
                        float[] gradient = result.gradient().toFloatArray();
                        Assert.assertEquals(new float[] {gradient[0], gradient[1]}, new float[2]);
                        Assert.assertTrue(Float.isFinite(gradient[2]) && gradient[2] != 0);
                        WeightUpdate update = WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0);
                        update.begin(1, 1);
                        fused.update(w, null, null, update, 1, null);
                        Assert.assertEquals(w.get(0).toFloatArray(), new float[2]);
                        Assert.assertTrue(Float.isFinite(w.sum().getFloat()));
                    }
                });
    }
}
