package io.djltp.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Training with a head whose products are in bfloat16 goes as training in float32 does. */
public class RoundedHeadTrainingTest {

    private static final TrainerKind ONE = new TrainerKind(ParallelMode.TENSOR, 1);
    private static final LossOptions PLAIN = LossOptions.DEFAULT;

    @BeforeClass
    public void bfloat16IsThere() {
        Precision.BFLOAT16
                .whyNot(Device.cpu())
                .ifPresent(
                        why -> {
                            throw new SkipException("bfloat16 " + why);
                        });
    }

    private static Block network(Precision precision) {
        return network(precision, true);
    }

    private static Block network(Precision precision, boolean fused) {
        return FusedTraining.network(head -> head.optFusedLoss(fused).optPrecision(precision));
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    /** Logits are below 4 here: losses are off by 4 (2u + u^2), u = 2^-8, at most. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void lossesStayNearThoseOfFloat32(TrainerKind kind) {
        assertNearFloat32(kind, true);
    }

    /**
     * Logits are rounded once more where they are had: 4 (3u + 3u^2 + u^3). The loss is off by at
     * most twice that, as the logarithm of the normaliser and the label's logit are.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void lossesOfAHeadThatIsNotFusedDoToo(TrainerKind kind) {
        assertNearFloat32(kind, false);
    }

    private static void assertNearFloat32(TrainerKind kind, boolean fused) {
        FusedTraining expected =
                FusedTraining.run(
                        kind,
                        network(Precision.FLOAT32),
                        FusedTraining.loss(PLAIN),
                        FusedTraining.sgd());
        FusedTraining actual =
                FusedTraining.run(
                        kind,
                        network(Precision.BFLOAT16, fused),
                        FusedTraining.loss(PLAIN),
                        FusedTraining.sgd());
        double bound = (fused ? 8 : 25) / 256.0;
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
        for (Precision precision : new Precision[] {Precision.FLOAT32, Precision.BFLOAT16}) {
            runs.add(
                    FusedTraining.run(
                            TrainerKind.PLAIN,
                            network(precision),
                            FusedTraining.loss(PLAIN),
                            FusedTraining.sgd()));
        }
        Assert.assertEquals(runs.get(1).losses, runs.get(0).losses);
    }

    /** One batch, until it is known by heart: both end with the same loss. */
    @Test(timeOut = 60_000)
    public void aBatchIsLearnedByHeart() {
        float[] last = new float[2];
        for (int i = 0; i < 2; i++) {
            int which = i;
            FusedTraining.use(
                    ONE,
                    network(i == 0 ? Precision.FLOAT32 : Precision.BFLOAT16),
                    FusedTraining.loss(PLAIN),
                    FusedTraining.sgd(),
                    (trainer, manager) -> {
                        for (int step = 0; step < 300; step++) {
                            try (NDManager scope = manager.newSubManager()) {
                                NDArray data = FusedTraining.data(scope, 0);
                                NDArray labels = FusedTraining.labels(scope, 0);
                                last[which] = TrainingRun.backward(trainer, data, labels);
                            }
                            trainer.step();
                        }
                    });
        }
        Assert.assertTrue(last[0] < 0.5, "loss " + last[0]);
        Assert.assertEquals(last[1], last[0], 0.05 * last[0]);
    }
}
