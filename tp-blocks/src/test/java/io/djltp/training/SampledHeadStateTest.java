package io.djltp.training;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.StepParticipant;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;

/** What a head that draws classes keeps beside its weight. */
public class SampledHeadStateTest {

    /** The number of steps is the state of a head that draws: a training that is continued. */
    @Test(timeOut = 60_000)
    public void theStateContinuesTheDraws() {
        float[] expected = new float[3];
        float[] restored = new float[3];
        for (float[] losses : List.of(expected, restored)) {
            FusedTraining.use(
                    new TrainerKind(ParallelMode.TENSOR, 2),
                    FusedTraining.network(head -> head.optFusedLoss(true).optSampleShare(0.5f)),
                    FusedTraining.loss(LossOptions.DEFAULT),
                    // a rate of zero: losses differ by what is drawn alone
                    Configs.sgd(0),
                    (trainer, manager) -> {
                        trainer.evaluate(new NDList(FusedTraining.data(manager, 0)));
                        int first = losses == expected ? 0 : 2;
                        setSteps((ParallelTrainer) trainer, manager, first);
                        for (int i = first; i < 3; i++) {
                            losses[i] =
                                    TrainingRun.backward(
                                            trainer,
                                            FusedTraining.data(manager, 0),
                                            FusedTraining.labels(manager, 0));
                            trainer.step();
                        }
                    });
        }
        Assert.assertEquals(restored[2], expected[2]);
        Assert.assertNotEquals(expected[2], expected[0]);
    }

    private static void setSteps(ParallelTrainer trainer, NDManager manager, long steps) {
        for (int rank = 0; rank < 2; rank++) {
            StepParticipant head =
                    trainer.getRanks().getContext(rank).getParticipants().iterator().next();
            Assert.assertEquals(head.getState(manager).get("steps").toLongArray()[0], 0);
            head.setState(Map.of("steps", manager.create(new long[] {steps})));
            Assert.expectThrows(
                    IllegalArgumentException.class,
                    () -> head.setState(Map.of("step", manager.create(1L))));
        }
    }
}
