package io.djltp.loss;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;

import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Network;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.SplittableRandom;

/** The cross entropy of logits that are cut by class is that of the whole logits. */
public class VocabParallelCrossEntropyLossTest {

    private static final float NO = Float.NEGATIVE_INFINITY;
    private static final float[] FOUR = {0, 1, 2, 3};

    /** Labels 4, none, 1 and 3 of five classes, with a weight each. */
    private static final float[] LOGITS = {
        0.5f, -1f, 2f, 0f, 1.5f,
        1f, 0.25f, -0.5f, 3f, -2f,
        0f, 0f, 1f, -1f, 0.5f,
        2f, -3f, 0.75f, 1.25f, 0.1f
    };

    private static final float[] WEIGHTS = {0.5f, 2, 0, 1.5f, 0.25f};
    private static final double SUM_OF_WEIGHTS = 3.75; // of the labels that count

    /** The gradients of the sum of LOGITS' losses, without smoothing and with 0.2. */
    private static final float[][] GRADIENTS = {
        {
            0.02768662f, 0.00617772f, 0.12408283f, 0.01679279f, -0.17473996f,
            0f, 0f, 0f, 0f, 0f,
            0.29696138f, -1.70303862f, 0.80722472f, 0.10924599f, 0.48960654f,
            0.78321705f, 0.00527727f, 0.22439544f, -1.13003446f, 0.11714469f
        },
        {
            0.0209762f, -0.07085697f, 0.18364259f, -0.03514668f, -0.09861514f,
            0f, 0f, 0f, 0f, 0f,
            0.24281082f, -1.41718918f, 0.71439388f, 0.0366827f, 0.42330179f,
            0.69533824f, -0.07518009f, 0.20494784f, -0.92209814f, 0.09699215f
        }
    };

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{0}, {1}, {2}, {3}, {4}}; // 0: outside of ranks, by DJL's trainer
    }

    private static VocabParallelCrossEntropyLoss loss(double smoothing, double zLoss) {
        LossOptions options = new LossOptions(-100, (float) smoothing, (float) zLoss);
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    /** Megatron-LM's fixture: logits 0 to 7, repeated over 128 classes, and even labels. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void theFixtureOfMegatron(int ranks) {
        float[] row = new float[128];
        for (int i = 0; i < row.length; i++) {
            row[i] = i % 8;
        }
        double[] expected = {10.2309, 8.2309, 6.2309, 4.2309};
        for (int i = 0; i < 16; i++) {
            LossPass pass = new LossPass(row, new Shape(1, 128), 2L * i);
            pass.run(ranks, new VocabParallelCrossEntropyLoss());
            // the expected values have four digits
            Assert.assertEquals(pass.value, expected[i % 4], 1e-4, "label " + 2 * i);
        }
    }

    /** Smoothing is PyTorch's: all classes share, the label's included; NeMo's is another rate. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void knownLossesOfFourClasses(int ranks) {
        Loss plain = new VocabParallelCrossEntropyLoss();
        float[] gradient =
                assertKnown(
                        ranks, plain, 0.4401897, 0.0320586f, 0.0871443f, 0.2368828f, -0.3560857f);
        float sum = gradient[0] + gradient[1] + gradient[2] + gradient[3];
        Assert.assertEquals(sum, 0, 2e-7); // four roundings of fp32
        Loss smoothed = loss(0.1, 0);
        assertKnown(ranks, smoothed, 0.5901897, 0.0070586f, 0.0621443f, 0.2118828f, -0.2810857f);
        Loss nemo = loss(0.1 * 4 / 3, 0);
        assertKnown(ranks, nemo, 0.6401897, -0.0012747f, 0.0538110f, 0.2035495f, -0.2560857f);
        Loss z = loss(0, 0.01);
        assertKnown(ranks, z, 0.5585388, 0.0342644f, 0.0931402f, 0.2531813f, -0.3117820f);
        float[] shifted = {5, 6, 7, 8}; // the same softmax, and another sum
        LossPass pass = new LossPass(shifted, new Shape(1, 4), 3).run(ranks, z);
        Assert.assertEquals(pass.value, 0.4401897 + 0.01 * 8.4401897 * 8.4401897, 1e-6);
    }

    /** By two all-reduces of the forward pass and none of the backward pass. */
    private static float[] assertKnown(int ranks, Loss loss, double value, float... gradient) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3).run(ranks, loss);
        // the expected values have seven digits
        Assert.assertEquals(pass.value, value, 1e-6);
        Assert.assertEquals(pass.lossShape, new Shape());
        ArrayAssert.assertClose(pass.gradient, gradient, 1e-6, "gradient");
        if (ranks > 0) {
            Assert.assertEquals(pass.forward.toString(), ranks == 1 ? "none" : "1 all-gather");
            Assert.assertEquals(pass.backward.total(), 0);
        }
        return pass.gradient;
    }

    /** Also large ones, an improbable label, and ranks with forbidden classes only. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void lossesOfAnyLogitsAreThoseOfDjl(int ranks) {
        float[] large = {1e4f, -1e4f, 0, 9999, -1e4f, 1e4f, -1e4f, 1e4f};
        assertSameAsDjl(ranks, large, new Shape(2, 4), 3, 0);
        float[] improbable = {5, 4, 3, 2, -1e4f, -1e4f, -1e4f, -1e4f};
        assertSameAsDjl(ranks, improbable, new Shape(1, 8), 6);
        float[] forbidden = {5, NO, 3, 2, NO, NO, NO, NO, NO, NO, NO, NO, 1, NO, 2, 0};
        assertSameAsDjl(ranks, forbidden, new Shape(2, 8), 2, 6);
        long[] labels = new long[15];
        Arrays.setAll(labels, i -> 7 * i % 21);
        assertSameAsDjl(ranks, random(new Shape(3, 5, 21), 4), new Shape(3, 5, 21), labels);
    }

    /** Labels may have the shape of the logits' rows, and any type. */
    private static void assertSameAsDjl(int ranks, float[] logits, Shape shape, long... labels) {
        Shape rows = shape.slice(0, shape.dimension() - 1);
        LossPass actual =
                new LossPass(
                        logits,
                        shape,
                        manager ->
                                manager.create(labels)
                                        .reshape(rows)
                                        .toType(DataType.FLOAT32, false));
        actual.run(ranks, new VocabParallelCrossEntropyLoss());
        Shape flat = new Shape(labels.length, logits.length / labels.length);
        LossPass djl = new LossPass(logits, flat, labels).run(0, Loss.softmaxCrossEntropyLoss());
        Assert.assertTrue(Float.isFinite(djl.value));
        // fp32: the same sum of exponentials in another order
        Assert.assertEquals(actual.value, djl.value, 1e-6 * djl.value);
        ArrayAssert.assertClose(actual.gradient, djl.gradient, 1e-6, "gradient");
    }

    @Test
    @SuppressWarnings("try") // a scope is used by being open
    public void wholeLogitsWithoutAGradient() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDList labels = new NDList(manager.create(new long[] {8, 0, 4, 4, 1}));
            Shape shape = new Shape(5, 9);
            NDList logits = new NDList(manager.create(random(shape, 2), shape));
            float djl = Loss.softmaxCrossEntropyLoss().evaluate(labels, logits).getFloat();
            NDArray own = new VocabParallelCrossEntropyLoss().evaluate(labels, logits);
            Assert.assertEquals(own.getFloat(), djl, 1e-6 * djl);
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void ignoredRowsCountForNothing(int ranks) {
        float[] logits = random(new Shape(3, 6), 1);
        float[] counted = Arrays.copyOf(logits, 12);
        System.arraycopy(logits, 12, counted, 6, 6); // without the second row
        for (long ignored : new long[] {VocabParallelCrossEntropyLoss.DEFAULT_IGNORE_INDEX, 4}) {
            Loss loss = new VocabParallelCrossEntropyLoss("CE", ignored);
            LossPass all = new LossPass(logits, new Shape(3, 6), 1, ignored, 5).run(ranks, loss);
            LossPass two = new LossPass(counted, new Shape(2, 6), 1, 5).run(ranks, loss);
            Assert.assertEquals(all.value, two.value, 1e-7); // a zero summand more
            for (int i = 0; i < 6; i++) {
                Assert.assertEquals(all.gradient[i], two.gradient[i], 0);
                Assert.assertEquals(all.gradient[6 + i], 0f, 0);
                Assert.assertEquals(all.gradient[12 + i], two.gradient[6 + i], 0);
            }
            LossPass none = new LossPass(logits, new Shape(3, 6), ignored, ignored, ignored);
            assertZero(none.run(ranks, loss));
        }
    }

    private static void assertZero(LossPass pass) {
        Assert.assertEquals(pass.value, 0f);
        for (float each : pass.gradient) {
            Assert.assertEquals(Math.abs(each), 0f); // a zero may have a sign
        }
    }

    /** The logits are rounded to 16 bits, and the gradient is; nothing between. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void sixteenBitLogitsAreComputedInThirtyTwo(int ranks) {
        float[] far = {
            1e4f, -1e4f, 0, 3, -1e4f, 1e4f, 1, 2, 5, 4, 3, 2, -1e4f, -1e4f, -1e4f, -1e4f, 1, 2, 3,
            4, 5, 6, 7, 8, 0.5f, 1.25f, -2, 3, -0.75f, 2, 1, 0
        };
        LossPass narrow = assertRounded(ranks, far, new Shape(4, 8), 3, 6, -100, 5);
        Assert.assertTrue(Float.isFinite(narrow.value));
        for (int i = 16; i < 24; i++) {
            Assert.assertEquals(Math.abs(narrow.gradient[i]), 0f, "the row that does not count");
        }
        Shape shape = new Shape(4, 300);
        assertRounded(ranks, halves(random(shape, 8)), shape, 0, 299, 150, 7);
    }

    private static LossPass assertRounded(int ranks, float[] logits, Shape shape, long... labels) {
        DataType type = DataType.FLOAT16; // DJL 0.35 makes no array of bfloat16: toType aborts
        LossPass narrow = new LossPass(logits, shape, labels).withType(type);
        LossPass wide = new LossPass(logits, shape, labels);
        for (Loss loss : new Loss[] {new VocabParallelCrossEntropyLoss(), loss(0.2, 0.05)}) {
            narrow.run(ranks, loss);
            wide.run(ranks, loss);
            Assert.assertEquals(narrow.value, wide.value, 0);
            Assert.assertEquals(narrow.gradient, halves(wide.gradient), 0f);
        }
        return narrow;
    }

    /** Rounds to what 16 bits can say. */
    private static float[] halves(float[] values) {
        try (NDManager manager = NDManager.newBaseManager()) {
            return ArrayAssert.floats(manager.create(values).toType(DataType.FLOAT16, false));
        }
    }

    @Test
    public void wholeLogitsMayBeInSixtyFourBits() {
        Shape shape = new Shape(5, 9);
        LossPass pass = new LossPass(random(shape, 2), shape, 8, 0, 4, -100, 1);
        float value = pass.run(0, loss(0.2, 0.05)).value;
        float[] gradient = pass.gradient;
        pass.withType(DataType.FLOAT64).run(0, loss(0.2, 0.05));
        Assert.assertEquals(pass.value, value, 1e-6 * value);
        ArrayAssert.assertClose(pass.gradient, gradient, 1e-6, "gradient");
    }

    /** Losses that PyTorch computes, also of rows where there are no ranks. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void weightedClasses(int ranks) {
        double[][] rows = {
            {0.3001279, 0.0, 3.81460074, 2.09971579}, {0.75418929, 0.0, 3.43092165, 2.25424042}
        };
        Shape labels = new Shape(2, 2);
        for (int smoothed = 0; smoothed < 2; smoothed++) {
            for (Reduction reduction : Reduction.values()) {
                boolean none = reduction == Reduction.NONE;
                if (none && ranks > 0) {
                    continue; // ranks have no losses of rows
                }
                double divisor = reduction == Reduction.MEAN ? SUM_OF_WEIGHTS : 1;
                LossPass pass =
                        new LossPass(
                                LOGITS,
                                new Shape(2, 2, 5),
                                manager -> manager.create(new long[] {4, -100, 1, 3}, labels));
                pass.run(ranks, weighted(smoothed, reduction));
                Assert.assertEquals(pass.lossShape, none ? labels : new Shape());
                double sum = Arrays.stream(rows[smoothed]).sum();
                Assert.assertEquals(pass.value, sum / divisor, 2e-6 / divisor);
                float[] expected = GRADIENTS[smoothed].clone();
                for (int i = 0; i < expected.length; i++) {
                    expected[i] /= (float) divisor;
                }
                ArrayAssert.assertClose(pass.gradient, expected, 1e-6, "" + reduction);
                if (ranks > 0) {
                    String counts = ranks == 1 ? "none" : "1 all-gather";
                    Assert.assertEquals(pass.forward.toString(), counts);
                }
            }
        }
        for (long label : new long[] {-100, 2}) { // ignored, or of a class without weight
            LossPass pass = new LossPass(LOGITS, new Shape(4, 5), label, label, label, label);
            // PyTorch's mean is not a number there; 0 changes no weight
            assertZero(pass.run(ranks, weighted(0, Reduction.MEAN)));
        }
    }

    private static Loss weighted(int smoothed, Reduction reduction) {
        LossOptions options = new LossOptions(-100, smoothed * 0.2f, 0);
        return new VocabParallelCrossEntropyLoss(
                "loss", options.withClassWeights(WEIGHTS).withReduction(reduction));
    }

    /** Case 21: the loss would be the right one plus ln p, 1.1333369 for case 18 at p = 2. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void whatIsNoSliceIsRefused(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3).withoutLayout();
        Loss loss = new VocabParallelCrossEntropyLoss();
        if (ranks <= 1) { // the whole is the slice
            Assert.assertEquals(pass.run(ranks, loss).value, 0.4401897, 1e-6);
            return;
        }
        Refusals.expect(
                RuntimeException.class,
                () -> pass.run(ranks, loss),
                "not known to be a slice of the classes");
    }

    /** Case 21: one error before the first step, with the remedy. */
    @Test(timeOut = 60_000)
    public void gatheredLogitsAreRefused() {
        Network net =
                Network.of(
                        cut -> sequence(linear(5), newColumn(7).optGatherOutput(true).build()),
                        VocabParallelCrossEntropyLoss::new,
                        Network.classification(6, 4, 7));
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2}) {
            net.assertRefused(
                    kind, "not known to be a slice of the classes", "without optGatherOutput");
        }
    }

    private static float[] random(Shape shape, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (10 * random.nextDouble() - 5);
        }
        return values;
    }
}
