package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.RankThreads;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Random;

/**
 * The loss of rows whose label has nearly all of the softmax. The logits are about 40, where
 * neighbours of float32 are 3.8e-6 apart; the loss is \(\log \sum_k \exp(z_k - z_y)\), of which the
 * rounding of \(z_y\) is no part.
 */
public class LearnedLabelTest {

    private static final int FEATURES = 24;
    private static final int CLASSES = 11;
    private static final int ROWS = 40; // one at a time: their errors would be averaged

    /** What the float32 sum of the exponentials leaves of a loss, with logarithm: 4 roundings. */
    private static final double BOUND = 4 * Math.scalb(1, -24);

    @Test(timeOut = 60_000)
    public void roundingOfLargeLogitsIsNotInTheLoss() throws Exception {
        for (int ranks : new int[] {1, 3}) {
            RankThreads.run(
                    ranks,
                    (group, manager) -> {
                        ShardRange range = Cut.balanced(CLASSES, ranks).getRange(group.getRank());
                        for (int i = 0; i < ROWS; i++) {
                            float[] x = new float[FEATURES];
                            float[] weight = new float[CLASSES * FEATURES];
                            int label = i % CLASSES;
                            double expected = fill(new Random(i), x, weight, label);
                            NDArray all = manager.create(weight, new Shape(CLASSES, FEATURES));
                            NDArray w = all.get(range.start() + ":" + range.end()).duplicate();
                            NDArray row = manager.create(x, new Shape(1, FEATURES));
                            NDArray labels = manager.create(new long[] {label});
                            try (FusedSoftmaxHead fused =
                                    new FusedSoftmaxHead(
                                            group,
                                            Cut.balanced(CLASSES, ranks),
                                            1 << 20,
                                            4,
                                            HeadOptions.DEFAULT)) {
                                double loss =
                                        fused.evaluate(row, w, null, labels, LossOptions.DEFAULT)
                                                .value()
                                                .getFloat();
                                Assert.assertEquals(loss, expected, BOUND, "row " + i);
                            }
                        }
                    });
        }
    }

    /** Makes a row with logits of about 40 for the label and 30 for the others. */
    private static double fill(Random random, float[] x, float[] weight, int label) {
        double square = 0;
        for (int j = 0; j < FEATURES; j++) {
            x[j] = (float) random.nextGaussian();
            square += (double) x[j] * x[j];
        }
        double[] logits = new double[CLASSES];
        for (int k = 0; k < CLASSES; k++) {
            double logit = k == label ? 40 : 30 + 5 * random.nextDouble();
            for (int j = 0; j < FEATURES; j++) {
                weight[k * FEATURES + j] = (float) (logit * x[j] / square);
                logits[k] += (double) x[j] * weight[k * FEATURES + j];
            }
        }
        double sum = 0;
        for (double logit : logits) {
            sum += Math.exp(logit - logits[label]);
        }
        return Math.log(sum);
    }
}
