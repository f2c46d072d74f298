package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.TestCases;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** The loss over drawn classes, and with margins, is what their definitions say. */
public class SampledHeadTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23; // uneven over 2, 3 and 4 ranks
    private static final long SEED = 9;

    private static final LossOptions EVERYTHING = new LossOptions(3, 0.2f, 0.02f);

    @DataProvider
    public Object[][] cases() {
        Margin[] margins = {
            null,
            Margin.arcFace(8, 0.5f),
            Margin.cosFace(64, 0.35f),
            Margin.combined(16, 1.1f, 0.2f, 0.1f)
        };
        LossOptions[] options = {HeadStep.PLAIN, EVERYTHING, EVERYTHING.withFocusing(1.5f)};
        return TestCases.product(
                HeadReference.cuts(CLASSES), margins, new Float[] {1f, 0.7f, 0.3f}, options);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsTheDefinition(Cut cut, Margin margin, float share, LossOptions options)
            throws Exception {
        HeadReference data = data(margin).withSpecialLabels();
        data.used = drawn(data, share, options, 0);
        long budget = (options == EVERYTHING ? 101 : 1) * 4L * (ROWS + 1) * Float.BYTES;
        HeadStep.Way way = new HeadStep.Way(cut, budget, 4, 1, margin == null);
        HeadStep step = HeadStep.updated(data, way, HeadStep.of(share, margin), options);
        double loss = data.loss(options);
        Assert.assertEquals(step.loss, loss, 1e-5 * loss);
        HeadStep.assertNear(step.ofFeatures, data.differences(data.x, options), "dX");
        HeadStep.assertNear(step.ofWeight, data.differences(data.weight, options), "dW");
        if (margin == null) {
            HeadStep.assertNear(step.ofBias, data.differences(data.bias, options), "db");
        }
        for (int i = 0; i < step.ofWeight.length; i++) { // what was not drawn has not moved
            boolean used = Arrays.binarySearch(data.used, i / FEATURES) >= 0;
            Assert.assertTrue(used || step.ofWeight[i] == 0, "dW " + i);
        }
    }

    private static HeadReference data(Margin margin) {
        HeadReference data = new HeadReference(3, 1, ROWS, FEATURES, CLASSES);
        data.margin = margin;
        if (margin != null) {
            Arrays.fill(data.bias, 0);
        }
        return data;
    }

    /** Returns the classes of a step: those that one rank draws. */
    private static int[] drawn(
            HeadReference reference, float share, LossOptions options, int step) {
        if (share == 1) {
            return IntStream.range(0, CLASSES).toArray();
        }
        long[] labels =
                LongStream.of(reference.labels)
                        .filter(l -> l != options.ignoreIndex())
                        .sorted()
                        .toArray();
        ClassShard all = new ClassShard(Cut.ofLengths(CLASSES), null);
        return Arrays.stream(new ClassSampler(all, share, SEED).draw(step, labels))
                .mapToInt(c -> (int) c)
                .toArray();
    }

    @DataProvider
    public Object[][] optimizers() {
        WeightUpdate.Settings[] settings = {
            WeightUpdate.Settings.DEFAULT,
            new WeightUpdate.Settings(0.1f, 1, -1),
            new WeightUpdate.Settings(0.1f, 2, 0.05f)
        };
        Margin[] margins = {null, Margin.arcFace(8, 0.3f)};
        return TestCases.product(ReferenceUpdate.Kind.values(), settings, margins);
    }

    /** Five steps, in which rows are drawn now and then: what was not drawn waits as it is. */
    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void updatesTheDrawnRowsAlone(
            ReferenceUpdate.Kind kind, WeightUpdate.Settings settings, Margin margin)
            throws Exception {
        HeadOptions head = HeadStep.of(0.5f, margin);
        for (Cut cut : List.of(Cut.balanced(CLASSES, 1), Cut.ofLengths(9, 13, 1))) {
            RankThreads.run(
                    cut.getRanks(),
                    (group, manager) -> {
                        List<ShardRange> own = cut.getRanges(group.getRank());
                        HeadReference data = data(margin);
                        Arrays.fill(data.bias, 0);
                        ReferenceUpdate expected =
                                new ReferenceUpdate(kind, settings, CLASSES, FEATURES);
                        SplittableRandom random = new SplittableRandom(1);
                        NDArray w = data.weight(manager, own);
                        try (WeightUpdate update = kind.update(settings);
                                ChunkedHead fused = new ChunkedHead(group, cut, 1 << 20, 4, head)) {
                            for (int step = 1; step <= 5; step++) {
                                Arrays.setAll(data.x, i -> (float) (2 * random.nextDouble() - 1));
                                Arrays.setAll(data.labels, row -> random.nextInt(CLASSES));
                                data.used = drawn(data, 0.5f, HeadStep.PLAIN, step - 1);
                                NDArray before = w.duplicate();
                                NDArray x = data.x(manager);
                                HeadStep.train(fused, x, w, data.labels(manager), update, step);
                                double[] gradient = data.differences(data.weight, HeadStep.PLAIN);
                                expected.apply(data.weight, gradient, data.used, 0.1, step);
                                float[] moved = w.sub(before).toFloatArray();
                                int[] places = HeadReference.places(own, FEATURES).toArray();
                                for (int i = 0; i < moved.length; i++) {
                                    int k = places[i] / FEATURES;
                                    boolean used = Arrays.binarySearch(data.used, k) >= 0;
                                    Assert.assertTrue(used || moved[i] == 0, "class " + k);
                                }
                            }
                        }
                        double[] ofRank = HeadReference.part(data.weight, own, FEATURES);
                        HeadStep.assertNear(w.toFloatArray(), ofRank, "weight");
                    });
        }
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
        HeadReference data = new HeadReference(1, 2, 2);
        System.arraycopy(new double[] {3, 4}, 0, data.x, 0, 2);
        System.arraycopy(new double[] {2, 0, 0, 5}, 0, data.weight, 0, 4);
        data.labels[0] = 0;
        for (int ranks : new int[] {1, 2}) {
            HeadStep.Way way = HeadStep.Way.unbiased(Cut.balanced(2, ranks));
            HeadStep step = HeadStep.updated(data, way, HeadStep.of(1, margin), HeadStep.PLAIN);
            Assert.assertEquals(step.loss, loss, 1e-6);
            HeadStep.assertNear(step.ofFeatures, byX, "dX");
            HeadStep.assertNear(step.ofWeight, byWeight, "dW");
        }
    }

    /** Features and weights of zeros have no direction: nothing pulls at them, nor turns to NaN. */
    @Test(timeOut = 60_000)
    public void rowsOfZerosStay() throws Exception {
        HeadReference data = new HeadReference(2, 2, 3);
        System.arraycopy(new double[] {0, 0, 1, 2}, 0, data.x, 0, 4);
        System.arraycopy(new double[] {0, 0, 1, 0, 3, 1}, 0, data.weight, 0, 6);
        data.labels[0] = 1;
        data.labels[1] = 0;
        HeadStep.Way way = HeadStep.Way.unbiased(Cut.ofLengths(3));
        HeadOptions head = HeadStep.of(1, Margin.arcFace(8, 0.5f));
        HeadStep step = HeadStep.updated(data, way, head, HeadStep.PLAIN);
        Assert.assertEquals(Arrays.copyOf(step.ofFeatures, 2), new float[2]);
        Assert.assertTrue(Float.isFinite(step.ofFeatures[2]) && step.ofFeatures[2] != 0);
        Assert.assertEquals(Arrays.copyOf(step.ofWeight, 2), new float[2]);
        for (float each : step.ofWeight) {
            Assert.assertTrue(Float.isFinite(each));
        }
    }
}
