package io.djltp.training;

import static io.djltp.testing.Blocks.linear;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.RankThreads;
import io.djltp.testing.Ranks;

import org.testng.annotations.Test;

/** A trainer that cannot be made leaves nothing behind. */
public class FailedTrainerTest {

    @Test(timeOut = 60_000)
    public void theRanksOfATrainerThatWasNotMadeEnd() throws InterruptedException {
        try (Model model = Model.newInstance("model", "PyTorch")) {
            model.setBlock(linear(3));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss()).optOptimizer(null);
            int managers = model.getNDManager().getManagedArrays().size();
            RankThreads ranks = new RankThreads();
            for (int i = 0; i < 3; i++) {
                expectThrows(
                        RuntimeException.class,
                        () ->
                                new ParallelTrainer(
                                        model, config, Ranks.config(ParallelMode.TENSOR, 2)));
            }
            ranks.assertCount(0);
            assertEquals(model.getNDManager().getManagedArrays().size(), managers);
        }
    }
}
