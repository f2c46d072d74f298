package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.torch.Autograd;
import io.djltp.testing.ArrayAssert;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * Class weights with ignored rows and label smoothing against PyTorch 1.13 in float64:
 *
 * <pre>
 * l = F.cross_entropy(z, y, weight=w, label_smoothing=a, ignore_index=-100, reduction=r)
 * l.sum().backward()
 * </pre>
 */
public class WeightedLossTest {

    private static final Shape SHAPE = new Shape(4, 5);
    private static final float[] LOGITS = {
        0.5f, -1, 2, 0, 1.5f, 1, 0.25f, -0.5f, 3, -2, 0, 0, 1, -1, 0.5f, 2, -3, 0.75f, 1.25f, 0.1f
    };
    private static final long[] LABELS = {4, -100, 1, 3};
    private static final float[] WEIGHTS = {0.5f, 2, 0, 1.5f, 0.25f};
    private static final double SUM_OF_WEIGHTS = 3.75; // of the labels that count

    /** The losses of the rows. */
    private static final double[][] ROWS = {
        {0.3001279, 0.0, 3.81460074, 2.09971579}, {0.75418929, 0.0, 3.43092165, 2.25424042}
    };

    /** The gradient of their sum, without smoothing and with 0.2. */
    private static final float[][] GRADIENTS = {
        {
            0.02768662f,
            0.00617772f,
            0.12408283f,
            0.01679279f,
            -0.17473996f,
            0,
            0,
            0,
            0,
            0,
            0.29696138f,
            -1.70303862f,
            0.80722472f,
            0.10924599f,
            0.48960654f,
            0.78321705f,
            0.00527727f,
            0.22439544f,
            -1.13003446f,
            0.11714469f
        },
        {
            0.0209762f,
            -0.07085697f,
            0.18364259f,
            -0.03514668f,
            -0.09861514f,
            0,
            0,
            0,
            0,
            0,
            0.24281082f,
            -1.41718918f,
            0.71439388f,
            0.0366827f,
            0.42330179f,
            0.69533824f,
            -0.07518009f,
            0.20494784f,
            -0.92209814f,
            0.09699215f
        }
    };

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    private static LossOptions options(int smoothed, Reduction reduction) {
        return new LossOptions(-100, smoothed * 0.2f, 0)
                .withClassWeights(WEIGHTS)
                .withReduction(reduction);
    }

    private static double sum(int smoothed) {
        double sum = 0;
        for (double row : ROWS[smoothed]) {
            sum += row;
        }
        return sum;
    }

    private static float[] gradient(int smoothed, double divisor) {
        float[] scaled = GRADIENTS[smoothed].clone();
        for (int i = 0; i < scaled.length; i++) {
            scaled[i] /= (float) divisor;
        }
        return scaled;
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void meansAndSums(int ranks) {
        for (int smoothed = 0; smoothed < 2; smoothed++) {
            for (Reduction reduction : new Reduction[] {Reduction.MEAN, Reduction.SUM}) {
                double divisor = reduction == Reduction.MEAN ? SUM_OF_WEIGHTS : 1;
                LossPass pass = new LossPass(LOGITS, SHAPE, LABELS);
                pass.run(
                        ranks,
                        new VocabParallelCrossEntropyLoss("loss", options(smoothed, reduction)));
                Assert.assertEquals(pass.value, sum(smoothed) / divisor, 2e-6 / divisor);
                ArrayAssert.assertClose(
                        pass.gradient, gradient(smoothed, divisor), 1e-6, "" + reduction);
                String counts = ranks == 1 ? "none" : "2 all-reduce";
                Assert.assertEquals(pass.forward.toString(), counts);
            }
        }
    }

    /** Under DJL's own trainer, where autograd records the losses of rows too. */
    @Test
    @SuppressWarnings("try") // a scope is used by being open
    public void wholeLogits() {
        try (NDManager manager = NDManager.newBaseManager();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            for (int smoothed = 0; smoothed < 2; smoothed++) {
                for (Reduction reduction : Reduction.values()) {
                    NDArray logits = manager.create(LOGITS, new Shape(2, 2, 5));
                    logits.setRequiresGradient(true);
                    NDList labels = new NDList(manager.create(LABELS, new Shape(2, 2)));
                    NDArray loss =
                            new VocabParallelCrossEntropyLoss("l", options(smoothed, reduction))
                                    .evaluate(labels, new NDList(logits));
                    boolean none = reduction == Reduction.NONE;
                    Assert.assertEquals(loss.getShape(), none ? new Shape(2, 2) : new Shape());
                    double divisor = reduction == Reduction.MEAN ? SUM_OF_WEIGHTS : 1;
                    Assert.assertEquals(
                            loss.sum().getFloat(), sum(smoothed) / divisor, 2e-6 / divisor);
                    Autograd.backward(loss, loss.onesLike());
                    ArrayAssert.assertClose(
                            Autograd.gradient(logits).toFloatArray(),
                            gradient(smoothed, divisor),
                            1e-6,
                            "" + reduction);
                }
            }
        }
    }

    /** PyTorch's mean is not a number there; 0 changes no weight. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void nothingThatCounts(int ranks) {
        for (long label : new long[] {-100, 2}) { // ignored, or of a class without weight
            LossPass pass = new LossPass(LOGITS, SHAPE, label, label, label, label);
            pass.run(ranks, new VocabParallelCrossEntropyLoss("loss", options(0, Reduction.MEAN)));
            Assert.assertEquals(pass.value, 0f);
            for (float gradient : pass.gradient) {
                Assert.assertEquals(Math.abs(gradient), 0f);
            }
        }
    }
}
