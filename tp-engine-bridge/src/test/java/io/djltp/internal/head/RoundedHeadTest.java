package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestCases;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** A head with products in 16 bits and weights in float32, against float64: in bfloat16. */
public class RoundedHeadTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 5;
    private static final int CLASSES = 23;
    private static final Boolean[] BOTH = {false, true};
    private static final LossOptions EVERYTHING = new LossOptions(3, 0.1f, 0.01f);

    private final Precision precision;
    private final HeadOptions rounded;

    /** Tests bfloat16. */
    public RoundedHeadTest() {
        this(Precision.BFLOAT16);
    }

    RoundedHeadTest(Precision precision) {
        this.precision = precision;
        rounded = new HeadOptions(1, 0, null, precision);
    }

    @BeforeClass
    public void arithmeticIsThere() {
        NeededArithmetic.bfloat16();
    }

    @DataProvider
    public Object[][] cases() {
        LossOptions[] options = {
            HeadStep.PLAIN, HeadStep.SMOOTH, EVERYTHING, new LossOptions(3, 0, 0.01f)
        };
        Integer[] ranks = {1, 2, 3, 4};
        return TestCases.product(ranks, options, new Integer[] {0, 1, 100}, BOTH);
    }

    /**
     * Loss and gradients are within what rounding explains, with an odd number of rows and
     * features, of chunks of which none, some or all are kept; guarded by a bias that takes
     * exponentials out of the range of float32.
     */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void isOffByRoundingOnly(int ranks, LossOptions options, int kept, boolean guarded)
            throws Exception {
        int lanes = kept == 1 ? 2 : 1;
        HeadReference data = new HeadReference(ROWS, FEATURES, CLASSES).withSpecialLabels();
        for (int k = 0; guarded && k < CLASSES; k++) {
            data.bias[k] += 100;
        }
        data.compute(options, true);
        RoundedBounds bounds = new RoundedBounds(data, options, true, precision);
        long budget = lanes * (kept * 4 + 6) * 4L * (ROWS + 1);
        HeadStep.Way way = new HeadStep.Way(Cut.balanced(CLASSES, ranks), budget, 4, lanes, true);
        HeadStep step = HeadStep.updated(data, way, rounded, options);
        step.assertWithin(data, bounds.loss, bounds.ofGradients);
    }

    @DataProvider
    public Object[][] heads() {
        Margin[] margins = {null, Margin.arcFace(8, 0.3f)};
        return TestCases.product(ReferenceUpdate.Kind.values(), new Float[] {1f, 0.5f}, margins);
    }

    /**
     * Three steps of any optimizer, over drawn classes and with a margin, stay near those of
     * float32: losses by what logits are off by, of cosines times 8 {@code 8 (2u + u^2)}; with
     * weights that have moved as well.
     */
    @Test(dataProvider = "heads", timeOut = 60_000)
    public void stepsStayNearFloat32(ReferenceUpdate.Kind kind, float share, Margin margin)
            throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    HeadReference data = new HeadReference(ROWS, FEATURES, CLASSES);
                    NDArray x = data.x(manager);
                    NDArray labels = data.labels(manager);
                    float[][] losses = new float[2][];
                    NDArray[] weights = new NDArray[2];
                    for (int i = 0; i < 2; i++) {
                        Precision each = i == 0 ? Precision.FLOAT32 : precision;
                        HeadOptions head = new HeadOptions(share, 1, margin, each);
                        weights[i] = data.weight(manager);
                        losses[i] = steps(head, kind, x, weights[i], labels);
                    }
                    NDArray start = data.weight(manager);
                    double moved = weights[0].sub(start).norm().getFloat();
                    double apart = weights[1].sub(weights[0]).norm().getFloat();
                    Assert.assertTrue(moved > 0);
                    Assert.assertTrue(apart > 0, "it was not computed in " + precision);
                    double u = precision.roundingError();
                    Assert.assertTrue(apart < 25.6 * u * moved, apart + " of " + moved);
                    for (int i = 0; i < losses[0].length; i++) {
                        Assert.assertEquals(losses[1][i], losses[0][i], 8 * 2 * u, "step " + i);
                    }
                });
    }

    private static float[] steps(
            HeadOptions head,
            ReferenceUpdate.Kind kind,
            NDArray x,
            NDArray weight,
            NDArray labels) {
        float[] losses = new float[3];
        try (ChunkedHead fused = new ChunkedHead(null, Cut.ofLengths(CLASSES), 1 << 20, 4, head);
                WeightUpdate update = kind.update(new WeightUpdate.Settings(0.1f, 1, -1))) {
            for (int i = 0; i < losses.length; i++) {
                losses[i] =
                        HeadStep.train(fused, x, weight, labels, update, i + 1).value().getFloat();
            }
        }
        return losses;
    }

    /** A label with all but 1e-9 of the softmax: p - 1 has its digits, though p is rounded. */
    @Test(timeOut = 60_000)
    public void theGradientOfALearnedLabelIsNotRoundedAway() throws Exception {
        HeadReference data = new HeadReference(1, 1, 3);
        data.x[0] = 1;
        System.arraycopy(new double[] {0, 20, 0}, 0, data.weight, 0, 3);
        data.labels[0] = 1;
        HeadStep.Way way = HeadStep.Way.unbiased(Cut.ofLengths(3));
        HeadStep step = HeadStep.summed(data, way, rounded, LossOptions.DEFAULT, 1);
        double expected = 2 * Math.exp(-20);
        Assert.assertEquals(step.loss, expected, expected / 100);
        Assert.assertEquals(step.ofWeight[1], -expected, expected / 100);
    }

    /** Batches of one step add up in float32, and ones of other sizes use the same memory. */
    @Test(timeOut = 60_000)
    public void gradientsOfSeveralBatchesAddUp() throws Exception {
        HeadReference data = new HeadReference(ROWS, FEATURES, CLASSES);
        data.compute(LossOptions.DEFAULT, false);
        RoundedBounds bounds = new RoundedBounds(data, LossOptions.DEFAULT, false, precision);
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = data.x(manager);
                    NDArray labels = data.labels(manager);
                    NDArray w = data.weight(manager);
                    NDArray sum = manager.zeros(w.getShape());
                    try (ChunkedHead fused =
                            new ChunkedHead(null, Cut.ofLengths(CLASSES), 1 << 20, 4, rounded)) {
                        int[][] parts = {{0, 4}, {4, 5}, {5, ROWS}};
                        for (int[] part : parts) {
                            NDIndex own = new NDIndex().addSliceDim(part[0], part[1]);
                            fused.evaluate(
                                    x.get(own), w, null, labels.get(own), LossOptions.DEFAULT);
                            float share = (part[1] - part[0]) / (float) ROWS;
                            fused.accumulate(w, null, null, sum, part[0] == 0, share);
                        }
                    }
                    HeadStep.assertClose(
                            sum.toFloatArray(), data.ofWeight, bounds.ofGradients.ofWeight(), "dW");
                });
    }

    @Test(timeOut = 60_000)
    public void whatIsNotThereIsRefused() throws Exception {
        Assert.assertEquals(
                Refusals.throwsArgument(() -> new HeadOptions(1, 0, null, Precision.TF32)),
                "A fused head cannot choose tf32 for itself: libtorch has one setting of it for the"
                        + " process, Float32Products.set. Use float32, bfloat16 or float16");
        try (NDManager manager = NDManager.newBaseManager();
                ChunkedHead fused = new ChunkedHead(null, Cut.ofLengths(4), 1 << 10, 0, rounded)) {
            NDArray x = manager.ones(new Shape(2, 3));
            NDArray weight = manager.ones(new Shape(4, 3)).toType(DataType.FLOAT64, false);
            NDArray labels = manager.zeros(new Shape(2));
            Refusals.throwsArgument(
                    () -> fused.evaluate(x, weight, null, labels, HeadStep.PLAIN),
                    "has its weight in float32");
        }
    }
}
