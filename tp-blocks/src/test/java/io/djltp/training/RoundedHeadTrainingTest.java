package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import io.djltp.head.LossOptions;
import io.djltp.internal.torch.Float16Product;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Training with a head whose products are in 16 bits goes as training in float32 does: in bfloat16
 * and, which the processor is allowed here, in float16.
 */
@SuppressWarnings("try") // a precision is allowed by being open
public class RoundedHeadTrainingTest {

    private static final TrainerKind ONE = new TrainerKind(ParallelMode.TENSOR, 1);
    private static final LossOptions PLAIN = LossOptions.DEFAULT;

    private Float ofFloat32; // the loss that it ends with

    private static boolean hasBFloat16() {
        return Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty();
    }

    private static Block network(Precision precision) {
        return network(precision, true);
    }

    private static Block network(Precision precision, boolean fused) {
        return FusedTraining.network(head -> head.optFusedLoss(fused).optPrecision(precision));
    }

    /** Those that can be computed here. */
    @DataProvider
    public Object[][] precisions() {
        List<Object[]> precisions = new ArrayList<>();
        if (hasBFloat16()) {
            precisions.add(new Object[] {Precision.BFLOAT16});
        }
        if (Float16Product.isThere(false)) {
            precisions.add(new Object[] {Precision.FLOAT16});
        }
        return precisions.toArray(new Object[0][]);
    }

    @DataProvider
    public Object[][] kinds() {
        return hasBFloat16() ? TrainerKind.parallel() : new Object[0][];
    }

    @DataProvider
    public Object[][] kindsAndPrecisions() {
        List<Object[]> cases = new ArrayList<>();
        for (Object[] precision : precisions()) {
            for (Object[] kind : TrainerKind.parallel()) {
                cases.add(new Object[] {kind[0], precision[0]});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /**
     * Logits are below 4 here: losses are off by 4 (2u + u^2) at most, and weights move by that.
     */
    @Test(dataProvider = "kindsAndPrecisions", timeOut = 60_000)
    public void lossesStayNearThoseOfFloat32(TrainerKind kind, Precision precision) {
        assertNearFloat32(kind, precision, true);
    }

    /**
     * Logits are rounded once more where they are had: 4 (3u + 3u^2 + u^3). The loss is off by at
     * most twice that, as the logarithm of the normaliser and the label's logit are.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void lossesOfAHeadThatIsNotFusedDoToo(TrainerKind kind) {
        assertNearFloat32(kind, Precision.BFLOAT16, false);
    }

    private static void assertNearFloat32(TrainerKind kind, Precision precision, boolean fused) {
        FusedTraining expected = FusedTraining.run(kind, network(Precision.FLOAT32));
        FusedTraining actual;
        try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
            actual = FusedTraining.run(kind, network(precision, fused));
        }
        double bound = (fused ? 8 : 25) * precision.roundingError();
        boolean same = true;
        for (int i = 0; i < expected.losses.length; i++) {
            Assert.assertEquals(actual.losses[i], expected.losses[i], bound, "step " + i);
            same &= actual.losses[i] == expected.losses[i];
        }
        Assert.assertFalse(same, "it is another arithmetic");
    }

    /** There the passes of a fused head do not run: {@code docs/million-class-head.md} says so. */
    @Test(timeOut = 60_000)
    public void underDjlsOwnTrainerAFusedHeadIsFloat32() {
        List<FusedTraining> runs = new ArrayList<>();
        for (Precision precision :
                new Precision[] {Precision.FLOAT32, Precision.BFLOAT16, Precision.FLOAT16}) {
            runs.add(FusedTraining.run(TrainerKind.PLAIN, network(precision)));
        }
        Assert.assertEquals(runs.get(1).losses, runs.get(0).losses);
        Assert.assertEquals(runs.get(2).losses, runs.get(0).losses);
    }

    /** No gradient of a fused head is lost for being small: it needs no scaled loss. */
    @Test(timeOut = 60_000)
    public void aProcessorIsRefusedFloat16() {
        IllegalArgumentException error =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> FusedTraining.run(ONE, network(Precision.FLOAT16)));
        String expected = "The precision float16 is arithmetic of GPUs, and the device is cpu()";
        Assert.assertTrue(error.getMessage().contains(expected), error.getMessage());
    }

    /** One batch, until it is known by heart: both end with the same loss. */
    @Test(dataProvider = "precisions", timeOut = 60_000)
    public void aBatchIsLearnedByHeart(Precision precision) {
        if (ofFloat32 == null) {
            ofFloat32 = learnByHeart(Precision.FLOAT32);
        }
        float expected = ofFloat32;
        Assert.assertTrue(expected < 0.5, "loss " + expected);
        try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
            Assert.assertEquals(learnByHeart(precision), expected, 0.05 * expected);
        }
    }

    private static float learnByHeart(Precision precision) {
        float[] last = new float[1];
        FusedTraining.use(
                ONE,
                network(precision),
                (trainer, manager) -> {
                    for (int step = 0; step < 300; step++) {
                        try (NDManager scope = manager.newSubManager()) {
                            NDArray data = FusedTraining.data(scope, 0);
                            NDArray labels = FusedTraining.labels(scope, 0);
                            last[0] = TrainingRun.backward(trainer, data, labels);
                        }
                        trainer.step();
                    }
                });
        return last[0];
    }
}
