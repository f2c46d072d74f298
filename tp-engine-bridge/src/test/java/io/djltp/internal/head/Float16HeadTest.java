package io.djltp.internal.head;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.ReferenceUpdate;
import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.Refusals;
import io.djltp.torch.Emulated;
import io.djltp.torch.Precision;

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

    private static final HeadOptions FLOAT16 = HeadStep.in(Precision.FLOAT16);
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

    private static HeadStep step(
            HeadReference data, HeadOptions head, LossOptions loss, float scale) throws Exception {
        HeadStep.Way way = new HeadStep.Way(Cut.ofLengths(data.classes), 1 << 20, 64, 1, true);
        return HeadStep.summed(data, way, head, loss, scale);
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
        HeadReference data = new HeadReference(5, 6, 700);
        for (int k = 0; k < data.classes; k++) {
            data.bias[k] = -20f * k / data.classes;
        }
        data.compute(loss, true);
        HeadStep step = step(data, FLOAT16, loss, 1);
        double largest = 2; // of features, which are from -2 to 2
        double logit = 6 * largest;
        double relative = Math.exp(2 * (2 * U + U * U) * logit) * Math.pow(1 + U, 2) - 1 + 1e-5;
        int tiny = 0;
        for (int k = 0; k < data.classes; k++) {
            double ofLogits = sumOfAbsolutes(data, k, smoothing);
            tiny += ofLogits < 6e-8 ? 1 : 0;
            double off = relative * ofLogits + 0x1p-38;
            Assert.assertEquals(step.ofBias[k], data.ofBias[k], off, "db " + k);
            for (int j = 0; j < data.features; j++) {
                int at = k * data.features + j;
                double bound = largest * off;
                Assert.assertEquals(step.ofWeight[at], data.ofWeight[at], bound, "dW " + at);
            }
        }
        Assert.assertTrue(smoothing > 0 || tiny > 200, tiny + " of them are below 6e-8");
    }

    /**
     * Returns the sum of the shares of a class, of the absolute values of what they are made of.
     */
    private static double sumOfAbsolutes(HeadReference data, int k, float smoothing) {
        double sum = 0;
        for (int i = 0; i < data.rows; i++) {
            double[] logits = data.logits(i, true);
            double p = Math.exp(logits[k] - HeadReference.logSumExp(logits));
            sum += p + smoothing / data.classes;
            sum += data.labels[i] == k ? 1 : 0;
        }
        return sum / data.rows;
    }

    /** A power of two that the loss is scaled with takes or adds no bit, as in float32. */
    @Test(dataProvider = "smoothings", timeOut = 60_000)
    public void theScaleOfTheLossChangesNoBit(float smoothing) throws Exception {
        LossOptions loss = new LossOptions(-100, smoothing, 0.01f);
        HeadReference data = new HeadReference(7, 5, 130);
        HeadStep plain = step(data, FLOAT16, loss, 1);
        for (float scale : new float[] {0x1p16f, 0x1p-12f}) {
            HeadStep scaled = step(data, FLOAT16, loss, scale);
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
        HeadReference data = new HeadReference(7, 5, 130);
        float[] weights = new float[data.classes];
        for (int k = 0; k < weights.length; k++) {
            weights[k] = (float) Math.pow(10, 4.0 * k / weights.length - 2);
        }
        LossOptions loss = PLAIN.withClassWeights(weights).withReduction(Reduction.SUM);
        HeadStep wide = step(data, HeadOptions.DEFAULT, loss, 1);
        HeadStep narrow = step(data, FLOAT16, loss, 1);
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

    /** Each is a wait on a GPU. */
    @Test(timeOut = 60_000)
    public void theHostReadsTwoNumbersMore() throws Exception {
        HeadReference data = new HeadReference(7, 5, 130);
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
        HeadReference data = new HeadReference(4, 3, 90);
        scale(data.x, ofX / 2);
        scale(data.weight, ofWeight);
        data.compute(PLAIN, true);
        double bound = (2 * U + U * U) * 3.0 * ofX * ofWeight + 3 * ofX * 0x1p-31 + 1e-5;
        HeadStep step = step(data, FLOAT16, PLAIN, 1);
        Assert.assertEquals(step.loss, data.loss, bound + 1e-5 * data.loss);
        for (float each : step.ofFeatures) {
            Assert.assertTrue(Math.abs(each) <= 2 * ofWeight, "dX " + each);
        }
        for (float each : step.ofWeight) {
            Assert.assertTrue(Math.abs(each) <= ofX, "dW " + each);
        }
    }

    private static void scale(double[] numbers, float factor) {
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
        HeadReference data = new HeadReference(4, 3, 90);
        data.weight[50] = weight;
        data.bias[16] = 5000; // the class of that weight
        data.bias[17] = 9000;
        Refusals.assertContains(refusal(ArithmeticException.class, data), "above 1,023");
    }

    /** Rows whose labels are all but sure: the others of the softmax have their digits. */
    @Test(timeOut = 60_000)
    public void whatALearnedLabelLeavesIsThere() throws Exception {
        HeadReference data = new HeadReference(1, 3, 90);
        data.labels[0] = 7;
        data.bias[7] = 40; // e^-40 is 2^-58
        data.compute(PLAIN, true);
        HeadStep step = step(data, FLOAT16, PLAIN, 1);
        double others = 0;
        for (int k = 0; k < data.classes; k++) {
            others += k == 7 ? 0 : data.ofBias[k];
        }
        for (int k = 0; k < data.classes; k++) {
            double expected = k == 7 ? -others : data.ofBias[k]; // p - 1 of float64 is not it
            double bound = 0.02 * Math.abs(expected);
            Assert.assertEquals(step.ofBias[k], expected, bound, "db " + k);
        }
        for (int j = 0; j < data.features; j++) {
            double bound = 0.04 * others;
            Assert.assertEquals(step.ofFeatures[j], data.ofFeatures[j], bound, "dX " + j);
        }
    }

    @Test(timeOut = 60_000)
    public void aBatchWithoutRowsOrOfLabelsOnly() throws Exception {
        HeadReference none = new HeadReference(0, 3, 9);
        Assert.assertEquals(step(none, FLOAT16, PLAIN, 1).ofWeight, new float[27]);
        HeadReference one = new HeadReference(3, 2, 1).compute(PLAIN, true);
        HeadStep step = step(one, FLOAT16, PLAIN, 1);
        Assert.assertEquals(step.loss, 0f);
        Assert.assertEquals(step.ofWeight, new float[2]);
    }

    @Test(timeOut = 60_000)
    public void aThousandStepsTakeNoMoreMemory() throws Exception {
        ChunkedHeadTest.assertConstantMemory(FLOAT16, ReferenceUpdate.Kind.SGD, 1, 1000);
    }

    @Test(timeOut = 60_000)
    public void aProcessorIsRefused() throws Exception {
        emulated.close();
        HeadReference data = new HeadReference(2, 3, 4);
        String message = refusal(IllegalArgumentException.class, data);
        String start =
                "The precision float16 is arithmetic of GPUs, and the device is cpu(). It is not"
                        + " emulated; use float32";
        Assert.assertTrue(message.startsWith(start), message);
    }

    /** Returns the exception that a step throws, of the rank or the cause of its failure. */
    private static String refusal(Class<? extends Exception> type, HeadReference data) {
        Exception error = Assert.expectThrows(Exception.class, () -> step(data, FLOAT16, PLAIN, 1));
        Throwable cause = type.isInstance(error) ? error : error.getCause();
        Assert.assertTrue(type.isInstance(cause), "" + error);
        return cause.getMessage();
    }
}
