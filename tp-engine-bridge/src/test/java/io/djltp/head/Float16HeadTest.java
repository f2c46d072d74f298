package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.testing.NeededArithmetic;
import io.djltp.torch.Emulated;
import io.djltp.torch.Precision;

import org.bytedeco.javacpp.Pointer;
import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * The same in float16, the arithmetic of GPUs, here on the processor; and what 5 bits of exponent
 * would lose.
 */
public class Float16HeadTest extends RoundedHeadTest {

    private static final HeadOptions FLOAT16 = new HeadOptions(1, 0, null, Precision.FLOAT16);
    private static final LossOptions PLAIN = LossOptions.DEFAULT;
    private static final double U = 0x1p-11;

    private Emulated emulated;

    public Float16HeadTest() {
        super(Precision.FLOAT16);
    }

    @Override
    @BeforeClass
    public void arithmeticIsThere() {
        NeededArithmetic.float16Products();
    }

    @BeforeMethod
    public void emulate() {
        emulated = new Emulated(Precision.FLOAT16);
    }

    @AfterMethod
    public void endEmulation() {
        emulated.close();
    }

    /** A loss of one rank and its gradients. */
    private record Step(float loss, float[] ofFeatures, float[] ofWeight, float[] ofBias) {}

    private static Step step(FusedReference data, HeadOptions head, LossOptions loss, float scale)
            throws Exception {
        Step[] step = new Step[1];
        RankThreads.run(
                1,
                (group, manager) -> {
                    NDArray x = manager.create(data.x, new Shape(data.rows, data.features));
                    NDArray w = manager.create(data.weight, new Shape(data.classes, data.features));
                    NDArray b = manager.create(data.bias);
                    NDArray ofWeight = manager.zeros(w.getShape());
                    NDArray ofBias = manager.zeros(b.getShape());
                    Cut cut = Cut.ofLengths(data.classes);
                    try (FusedSoftmaxHead fused =
                            new FusedSoftmaxHead(null, cut, 1 << 20, 64, head)) {
                        NDArray labels = manager.create(data.labels);
                        FusedSoftmaxHead.Result result = fused.evaluate(x, w, b, labels, loss);
                        fused.accumulate(w, b, ofBias, ofWeight, true, scale);
                        step[0] =
                                new Step(
                                        result.value().getFloat(),
                                        result.gradient().toFloatArray(),
                                        ofWeight.toFloatArray(),
                                        ofBias.toFloatArray());
                    }
                });
        return step[0];
    }

    @DataProvider
    public Object[][] smoothings() {
        return new Object[][] {{0f}, {0.1f}};
    }

    /**
     * Probabilities from 1 to 1e-9, of rows that are a fifth of the batch: float16 has no number
     * for the gradients of most of their logits. All are within the relative bound of rounding,
     * 1e-5 for the sums of float32 and what is off by exponents, 2^-38 of the largest for each row.
     */
    @Test(dataProvider = "smoothings", timeOut = 60_000)
    public void smallGradientsHaveTheirDigits(float smoothing) throws Exception {
        LossOptions loss = new LossOptions(-100, smoothing, 0);
        FusedReference data = new FusedReference(5, 6, 700);
        for (int k = 0; k < data.classes; k++) {
            data.bias[k] = -20f * k / data.classes;
        }
        data.compute(loss, true);
        Step step = step(data, FLOAT16, loss, 1);
        double largest = 2; // of features, which are from -2 to 2
        double logit = 6 * largest;
        double relative = Math.exp(2 * (2 * U + U * U) * logit) * Math.pow(1 + U, 2) - 1 + 1e-5;
        int tiny = 0;
        for (int k = 0; k < data.classes; k++) {
            double ofLogits = sumOfAbsolutes(data, k, smoothing);
            tiny += ofLogits < 6e-8 ? 1 : 0;
            double off = relative * ofLogits + 0x1p-38;
            Assert.assertEquals(step.ofBias[k], data.biasGradient[k], off, "db " + k);
            for (int j = 0; j < data.features; j++) {
                int at = k * data.features + j;
                double bound = largest * off;
                Assert.assertEquals(step.ofWeight[at], data.weightGradient[at], bound, "dW " + at);
            }
        }
        Assert.assertTrue(smoothing > 0 || tiny > 200, tiny + " of them are below 6e-8");
    }

    /**
     * Returns the sum of the shares of a class, of the absolute values of what they are made of.
     */
    private static double sumOfAbsolutes(FusedReference data, int k, float smoothing) {
        double sum = 0;
        for (int i = 0; i < data.rows; i++) {
            double[] exponentials = new double[data.classes];
            double all = 0;
            for (int c = 0; c < data.classes; c++) {
                double logit = data.bias[c];
                for (int j = 0; j < data.features; j++) {
                    int ofX = i * data.features + j;
                    logit += (double) data.x[ofX] * data.weight[c * data.features + j];
                }
                exponentials[c] = Math.exp(logit);
                all += exponentials[c];
            }
            sum += exponentials[k] / all + smoothing / data.classes;
            sum += data.labels[i] == k ? 1 : 0;
        }
        return sum / data.rows;
    }

    /** A power of two that the loss is scaled with takes or adds no bit, as in float32. */
    @Test(dataProvider = "smoothings", timeOut = 60_000)
    public void theScaleOfTheLossChangesNoBit(float smoothing) throws Exception {
        LossOptions loss = new LossOptions(-100, smoothing, 0.01f);
        FusedReference data = new FusedReference(7, 5, 130);
        Step plain = step(data, FLOAT16, loss, 1);
        for (float scale : new float[] {0x1p16f, 0x1p-12f}) {
            Step scaled = step(data, FLOAT16, loss, scale);
            Assert.assertEquals(scaled.loss, plain.loss);
            Assert.assertEquals(scaled.ofFeatures, plain.ofFeatures);
            for (int i = 0; i < plain.ofWeight.length; i++) {
                Assert.assertEquals(scaled.ofWeight[i], scale * plain.ofWeight[i], 0f, "dW " + i);
            }
            for (int i = 0; i < plain.ofBias.length; i++) {
                Assert.assertEquals(scaled.ofBias[i], scale * plain.ofBias[i], 0f, "db " + i);
            }
        }
    }

    /** Weights of classes from 0.01 to 100, and sums: near float32, off by two rounded factors. */
    @Test(timeOut = 60_000)
    public void classesMayHaveWeights() throws Exception {
        FusedReference data = new FusedReference(7, 5, 130);
        float[] weights = new float[data.classes];
        for (int k = 0; k < weights.length; k++) {
            weights[k] = (float) Math.pow(10, 4.0 * k / weights.length - 2);
        }
        LossOptions loss = PLAIN.withClassWeights(weights).withReduction(Reduction.SUM);
        Step wide = step(data, HeadOptions.DEFAULT, loss, 1);
        Step narrow = step(data, FLOAT16, loss, 1);
        double logit = 2 * U * 5 * 2; // of features up to 2 and weights up to 1
        double off = Math.exp(2 * logit) * Math.pow(1 + U, 2) - 1 + 1e-5;
        Assert.assertEquals(narrow.loss, wide.loss, logit * 7 * 100);
        assertNear(narrow.ofBias, wide.ofBias, off);
        assertNear(narrow.ofWeight, wide.ofWeight, off);
        assertNear(narrow.ofFeatures, wide.ofFeatures, off);
    }

    private static void assertNear(float[] actual, float[] expected, double off) {
        double largest = 0;
        for (float each : expected) {
            largest = Math.max(largest, Math.abs(each));
        }
        Assert.assertTrue(largest > 0);
        for (int i = 0; i < expected.length; i++) {
            Assert.assertEquals(actual[i], expected[i], off * largest, "" + i);
        }
    }

    /** {@code docs/gpu.md} says how many, as each is a wait on a GPU. */
    @Test(timeOut = 60_000)
    public void theHostReadsTwoNumbersMore() throws Exception {
        FusedReference data = new FusedReference(7, 5, 130);
        long start = HostReads.getCount();
        step(data, HeadOptions.DEFAULT, PLAIN, 1);
        long between = HostReads.getCount();
        step(data, FLOAT16, PLAIN, 1);
        Assert.assertEquals(HostReads.getCount() - between, between - start + 2);
    }

    @DataProvider
    public Object[][] magnitudes() {
        return new Object[][] {{1e6f, 1e-3f}, {300f, 700f}, {1e-9f, 900f}, {3e8f, 1e-6f}};
    }

    /**
     * Features that float16 has no number for, and logits above 65,504: the loss is that of
     * float64, of logits that are off by {@code (2u + u^2) sum |x||w|}, as in {@link
     * RoundedBounds}, and by what weights lack in exponents.
     */
    @Test(dataProvider = "magnitudes", timeOut = 60_000)
    public void featuresAndLogitsMayBeLarge(float ofX, float ofWeight) throws Exception {
        FusedReference data = new FusedReference(4, 3, 90);
        scale(data.x, ofX / 2);
        scale(data.weight, ofWeight);
        data.compute(PLAIN, true);
        double bound = (2 * U + U * U) * 3.0 * ofX * ofWeight + 3 * ofX * 0x1p-31 + 1e-5;
        Step step = step(data, FLOAT16, PLAIN, 1);
        Assert.assertEquals(step.loss, data.loss, bound + 1e-5 * data.loss);
        for (float each : step.ofFeatures) {
            Assert.assertTrue(Math.abs(each) <= 2 * ofWeight, "dX " + each);
        }
        for (float each : step.ofWeight) {
            Assert.assertTrue(Math.abs(each) <= ofX, "dW " + each);
        }
    }

    private static void scale(float[] numbers, float factor) {
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] *= factor;
        }
    }

    @DataProvider
    public Object[][] largeWeights() {
        return new Object[][] {{2000f}, {-2000f}};
    }

    /** Also where the class has no part in the softmax: an error, and no weight has moved. */
    @Test(dataProvider = "largeWeights", timeOut = 60_000)
    public void aWeightThatFloat16DoesNotHaveIsRefused(float weight) {
        FusedReference data = new FusedReference(4, 3, 90);
        data.weight[50] = weight;
        data.bias[16] = 5000; // the class of that weight
        data.bias[17] = 9000;
        Exception error = Assert.expectThrows(Exception.class, () -> step(data, FLOAT16, PLAIN, 1));
        Throwable cause = error instanceof ArithmeticException ? error : error.getCause();
        Assert.assertTrue(cause instanceof ArithmeticException, "" + error);
        Assert.assertTrue(cause.getMessage().contains("above 1,023"), cause.getMessage());
    }

    /** Rows whose labels are all but sure: the others of the softmax have their digits. */
    @Test(timeOut = 60_000)
    public void whatALearnedLabelLeavesIsThere() throws Exception {
        FusedReference data = new FusedReference(1, 3, 90);
        data.labels[0] = 7;
        data.bias[7] = 40; // e^-40 is 2^-58
        data.compute(PLAIN, true);
        Step step = step(data, FLOAT16, PLAIN, 1);
        double others = 0;
        for (int k = 0; k < data.classes; k++) {
            others += k == 7 ? 0 : data.biasGradient[k];
        }
        for (int k = 0; k < data.classes; k++) {
            double expected = k == 7 ? -others : data.biasGradient[k]; // p - 1 of float64 is not it
            double bound = 0.02 * Math.abs(expected);
            Assert.assertEquals(step.ofBias[k], expected, bound, "db " + k);
        }
        for (int j = 0; j < data.features; j++) {
            double bound = 0.04 * others;
            Assert.assertEquals(step.ofFeatures[j], data.featureGradient[j], bound, "dX " + j);
        }
    }

    @Test(timeOut = 60_000)
    public void aBatchWithoutRowsOrOfLabelsOnly() throws Exception {
        FusedReference none = new FusedReference(0, 3, 9);
        Assert.assertEquals(step(none, FLOAT16, PLAIN, 1).ofWeight, new float[27]);
        FusedReference one = new FusedReference(3, 2, 1).compute(PLAIN, true);
        Step step = step(one, FLOAT16, PLAIN, 1);
        Assert.assertEquals(step.loss, 0f);
        Assert.assertEquals(step.ofWeight, new float[2]);
    }

    /** Memory is taken by the first steps; others, of fewer rows too, add nothing. */
    @Test(timeOut = 60_000)
    public void aThousandStepsTakeTheMemoryOfTen() throws Exception {
        RankThreads.run(
                1,
                (group, manager) -> {
                    FusedReference data = new FusedReference(6, 3, 10);
                    NDArray w = manager.create(data.weight, new Shape(data.classes, data.features));
                    NDArray x = manager.create(data.x, new Shape(6, 3));
                    NDArray labels = manager.create(data.labels);
                    NDArray[] batches = {x, x.get("0:4")};
                    NDArray[] ofBatches = {labels, labels.get("0:4")};
                    // memory for two chunks of 4 classes, of which one is kept
                    Cut cut = Cut.ofLengths(data.classes);
                    try (FusedSoftmaxHead fused =
                                    new FusedSoftmaxHead(null, cut, 10 * 4 * 6, 4, FLOAT16);
                            WeightUpdate update =
                                    WeightUpdate.sgd(WeightUpdate.Settings.DEFAULT, 0)) {
                        long[] pointers = new long[1001];
                        for (int step = 1; step <= 1000; step++) {
                            NDArray batch = batches[step % 2];
                            FusedSoftmaxHead.Result result =
                                    fused.evaluate(batch, w, null, ofBatches[step % 2], PLAIN);
                            result.value().close();
                            result.gradient().close();
                            update.begin(0.1f, step);
                            fused.update(w, null, null, update, 1, null);
                            pointers[step] = Pointer.totalCount();
                        }
                        Assert.assertEquals(pointers[1000], pointers[10]);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void aProcessorIsRefused() throws Exception {
        emulated.close();
        FusedReference data = new FusedReference(2, 3, 4);
        Exception error = Assert.expectThrows(Exception.class, () -> step(data, FLOAT16, PLAIN, 1));
        Throwable cause = error instanceof IllegalArgumentException ? error : error.getCause();
        Assert.assertTrue(
                cause.getMessage()
                        .startsWith(
                                "The precision float16 is arithmetic of GPUs, and the device is"
                                        + " cpu(). It is not emulated; use float32"),
                cause.getMessage());
    }
}
