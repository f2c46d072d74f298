package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;

import io.djltp.head.LossOptions;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.SplittableRandom;

/** The cross entropy of logits that are cut by class is that of the whole logits. */
public class VocabParallelCrossEntropyLossTest {

    private static final float[] FOUR = {0, 1, 2, 3};
    private static final float[] FOUR_GRADIENT = {0.0320586f, 0.0871443f, 0.2368828f, -0.3560857f};

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
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

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void fourClasses(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3);
        pass.run(ranks, new VocabParallelCrossEntropyLoss());
        // the expected values have seven digits
        Assert.assertEquals(pass.value, 0.4401897, 1e-6);
        float sum = 0;
        for (int i = 0; i < 4; i++) {
            Assert.assertEquals(pass.gradient[i], FOUR_GRADIENT[i], 1e-6, "class " + i);
            sum += pass.gradient[i];
        }
        Assert.assertEquals(sum, 0, 2e-7); // four roundings of fp32
    }

    /** PyTorch's rule: all classes share, the label's included. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void smoothedLabels(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3);
        pass.run(ranks, loss(new LossOptions(-100, 0.1f, 0)));
        Assert.assertEquals(pass.value, 0.5901897, 1e-6);
        assertGradient(pass, 0.0070586, 0.0621443, 0.2118828, -0.2810857);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void zLoss(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3);
        pass.run(ranks, loss(new LossOptions(-100, 0, 0.01f)));
        Assert.assertEquals(pass.value, 0.5585388, 1e-6);
        assertGradient(pass, 0.0342644, 0.0931402, 0.2531813, -0.3117820);
        float[] shifted = {5, 6, 7, 8}; // the same softmax, and another sum
        pass = new LossPass(shifted, new Shape(1, 4), 3);
        pass.run(ranks, loss(new LossOptions(-100, 0, 0.01f)));
        Assert.assertEquals(pass.value, 0.4401897 + 0.01 * 8.4401897 * 8.4401897, 1e-6);
    }

    private static VocabParallelCrossEntropyLoss loss(LossOptions options) {
        return new VocabParallelCrossEntropyLoss("loss", options);
    }

    private static void assertGradient(LossPass pass, double... expected) {
        for (int i = 0; i < expected.length; i++) {
            Assert.assertEquals(pass.gradient[i], expected[i], 1e-6, "class " + i);
        }
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void twoAllReducesForwardAndNoneBackward(int ranks) {
        LossPass pass = new LossPass(FOUR, new Shape(1, 4), 3);
        pass.run(ranks, new VocabParallelCrossEntropyLoss());
        String expected = ranks == 1 ? "none" : "2 all-reduce";
        Assert.assertEquals(pass.forward.toString(), expected);
        Assert.assertEquals(pass.backward.total(), 0);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void anyShapeOfLogitsWithLabelsOfAnyType(int ranks) {
        Shape shape = new Shape(3, 5, 21);
        float[] logits = random(shape, 4);
        float[] labels = new float[15];
        for (int i = 0; i < labels.length; i++) {
            labels[i] = (7 * i) % 21;
        }
        LossPass actual =
                new LossPass(logits, shape, manager -> manager.create(labels, new Shape(3, 5)));
        actual.run(ranks, new VocabParallelCrossEntropyLoss());
        long[] ids = new long[15];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = (long) labels[i];
        }
        assertSameAsDjl(actual, logits, new Shape(15, 21), ids);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void largeLogitsStayFinite(int ranks) {
        float[] logits = {1e4f, -1e4f, 0, 9999, -1e4f, 1e4f, -1e4f, 1e4f};
        LossPass actual = new LossPass(logits, new Shape(2, 4), 3, 0);
        actual.run(ranks, new VocabParallelCrossEntropyLoss());
        assertSameAsDjl(actual, logits, new Shape(2, 4), 3, 0);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void theLabelMayLieAmongImprobableClassesOnly(int ranks) {
        float[] logits = {5, 4, 3, 2, -1e4f, -1e4f, -1e4f, -1e4f};
        LossPass actual = new LossPass(logits, new Shape(1, 8), 6);
        actual.run(ranks, new VocabParallelCrossEntropyLoss());
        assertSameAsDjl(actual, logits, new Shape(1, 8), 6);
    }

    /** Minus infinity forbids a class; a rank may have forbidden classes only. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void classesMayBeForbidden(int ranks) {
        float no = Float.NEGATIVE_INFINITY;
        float[] logits = {5, no, 3, 2, no, no, no, no, no, no, no, no, 1, no, 2, 0};
        LossPass actual = new LossPass(logits, new Shape(2, 8), 2, 6);
        actual.run(ranks, new VocabParallelCrossEntropyLoss());
        assertSameAsDjl(actual, logits, new Shape(2, 8), 2, 6);
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void ignoredRowsCountForNothing(int ranks) {
        float[] logits = random(new Shape(3, 6), 1);
        float[] counted = java.util.Arrays.copyOf(logits, 12);
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
            none.run(ranks, loss);
            Assert.assertEquals(none.value, 0f);
            ArrayAssert.assertBitEqual(absolute(none.gradient), new float[18], "all ignored");
        }
    }

    /** The logits are rounded to 16 bits, and the gradient is; nothing between. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void sixteenBitLogitsAreComputedInThirtyTwo(int ranks) {
        Shape shape = new Shape(4, 300);
        float[] logits = random(shape, 8);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray half = manager.create(logits, shape).toType(DataType.FLOAT16, false);
            logits = ArrayAssert.floats(half); // what 16 bits can say
        }
        long[] labels = {0, 299, 150, 7};
        LossPass narrow = new LossPass(logits, shape, labels).withType(DataType.FLOAT16);
        narrow.run(ranks, new VocabParallelCrossEntropyLoss());
        LossPass wide = new LossPass(logits, shape, labels);
        wide.run(ranks, new VocabParallelCrossEntropyLoss());
        Assert.assertEquals(narrow.value, wide.value, 0);
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray rounded = manager.create(wide.gradient).toType(DataType.FLOAT16, false);
            ArrayAssert.assertBitEqual(
                    narrow.gradient, ArrayAssert.floats(rounded), "gradient in 16 bits");
        }
    }

    /** Under DJL's own trainer the loss gets whole logits, and no rank. */
    @Test
    public void wholeLogitsOutsideOfRanksAreTakenAsDjlTakesThem() {
        Shape shape = new Shape(5, 9);
        float[] logits = random(shape, 2);
        long[] labels = {8, 0, 4, 4, 1};
        try (NDManager manager = NDManager.newBaseManager()) {
            for (boolean gradient : new boolean[] {true, false}) {
                Djl actual =
                        new Djl(
                                manager,
                                new VocabParallelCrossEntropyLoss(),
                                logits,
                                shape,
                                gradient,
                                labels);
                Djl expected =
                        new Djl(
                                manager,
                                Loss.softmaxCrossEntropyLoss(),
                                logits,
                                shape,
                                gradient,
                                labels);
                Assert.assertEquals(actual.value, expected.value, 1e-6 * expected.value);
                if (gradient) {
                    ArrayAssert.assertClose(actual.gradient, expected.gradient, 1e-6, "gradient");
                }
            }
        }
    }

    /** Under DJL's own trainer, and with everything that is computed beside the mean. */
    @Test
    public void wholeLogitsMayBeInSixteenOrSixtyFourBits() {
        Shape shape = new Shape(5, 9);
        long[] labels = {8, 0, 4, -100, 1};
        Loss loss = new VocabParallelCrossEntropyLoss("loss", new LossOptions(-100, 0.2f, 0.05f));
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray half = manager.create(random(shape, 2), shape).toType(DataType.FLOAT16, false);
            float[] logits = ArrayAssert.floats(half); // what 16 bits can say
            Djl expected = new Djl(manager, loss, logits, shape, true, labels);
            for (DataType type : new DataType[] {DataType.FLOAT16, DataType.FLOAT64}) {
                NDArray whole = manager.create(logits, shape).toType(type, true);
                Djl actual = new Djl(manager, loss, whole, true, labels);
                Assert.assertEquals(actual.value, expected.value, 1e-6 * expected.value);
                float[] gradient = expected.gradient;
                if (type == DataType.FLOAT16) {
                    gradient =
                            ArrayAssert.floats(
                                    manager.create(gradient).toType(DataType.FLOAT16, false));
                }
                ArrayAssert.assertClose(actual.gradient, gradient, 1e-6, "" + type);
            }
        }
    }

    private static void assertSameAsDjl(
            LossPass actual, float[] logits, Shape shape, long... labels) {
        try (NDManager manager = NDManager.newBaseManager()) {
            Djl djl = new Djl(manager, Loss.softmaxCrossEntropyLoss(), logits, shape, true, labels);
            Assert.assertTrue(Float.isFinite(djl.value));
            // fp32: the same sum of exponentials in another order
            Assert.assertEquals(actual.value, djl.value, 1e-6 * djl.value);
            ArrayAssert.assertClose(actual.gradient, djl.gradient, 1e-6, "gradient");
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

    private static float[] absolute(float[] values) {
        float[] absolute = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            absolute[i] = Math.abs(values[i]); // a zero may have a sign
        }
        return absolute;
    }

    /** A loss of whole logits outside of ranks. */
    private static final class Djl {

        private final float value;
        private float[] gradient;

        Djl(
                NDManager manager,
                Loss loss,
                float[] logits,
                Shape shape,
                boolean withGradient,
                long... labels) {
            this(manager, loss, manager.create(logits, shape), withGradient, labels);
        }

        @SuppressWarnings("try") // a scope is used by being open
        Djl(NDManager manager, Loss loss, NDArray whole, boolean withGradient, long... labels) {
            whole.setRequiresGradient(withGradient);
            try (Autograd.GradMode mode = Autograd.gradMode(withGradient)) {
                NDArray scalar =
                        loss.evaluate(new NDList(manager.create(labels)), new NDList(whole));
                value = scalar.getFloat();
                if (withGradient) {
                    Autograd.backward(scalar, scalar.onesLike());
                    gradient = ArrayAssert.floats(Autograd.gradient(whole));
                }
            }
        }
    }
}
