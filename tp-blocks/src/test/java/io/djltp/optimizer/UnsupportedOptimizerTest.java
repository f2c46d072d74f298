package io.djltp.optimizer;

import static io.djltp.testing.TrainerKind.DATA_2;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.RankThreads;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** An optimizer whose rule is not known is refused before a rank is started. */
public class UnsupportedOptimizerTest {

    /** May do anything in its update. */
    private static final class OwnSgd extends Sgd {
        OwnSgd() {
            super(Optimizer.sgd().setLearningRateTracker(Tracker.fixed(1f)));
        }
    }

    @DataProvider
    public Object[][] optimizers() {
        return new Object[][] {
            {new OwnSgd(), "io.djltp.optimizer.UnsupportedOptimizerTest$OwnSgd"},
            {
                Optimizer.nag().setLearningRateTracker(Tracker.fixed(1f)).setMomentum(0.5f).build(),
                "ai.djl.training.optimizer.Nag"
            },
            {Optimizer.adadelta().build(), "ai.djl.training.optimizer.Adadelta"},
            {Optimizer.rmsprop().build(), "ai.djl.training.optimizer.RmsProp"}
        };
    }

    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void isRefused(Optimizer optimizer, String name) throws InterruptedException {
        RankThreads threads = new RankThreads();
        try (Model model = Model.newInstance("net")) {
            model.setBlock(Linear.builder().setUnits(2).build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new HalfSquareLoss()).optOptimizer(optimizer);
            UnsupportedOperationException e =
                    expectThrows(
                            UnsupportedOperationException.class, () -> DATA_2.open(model, config));
            assertEquals(
                    e.getMessage(),
                    "Parameters are updated by Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad, but"
                            + " the optimizer is a "
                            + name
                            + "; subclasses are not supported either");
        }
        threads.assertCount(0);
    }
}
