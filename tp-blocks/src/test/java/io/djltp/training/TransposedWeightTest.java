package io.djltp.training;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** A weight that was loaded turned, and so lies turned in memory, is trained as any other. */
public class TransposedWeightTest {

    private static final Shape WEIGHT = new Shape(2, 3);
    private static final float[] ROWS = {1, 2, 3, 4, 5, 6};
    private static final float[] COLUMNS = {1, 4, 2, 5, 3, 6};

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {{ParallelMode.TENSOR, 1}, {ParallelMode.DATA, 2}};
    }

    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void theStepIsThatOfADenseWeight(ParallelMode mode, int ranks) {
        ParallelConfig config = ParallelConfig.builder().setMode(mode).setRanks(ranks).build();
        float[] dense = train(config, (m, shape, type) -> m.create(ROWS, WEIGHT));
        float[] turned =
                train(config, (m, shape, type) -> m.create(COLUMNS, new Shape(3, 2)).transpose());
        assertEquals(turned, dense);
    }

    /** Returns the weight after two steps. */
    private static float[] train(ParallelConfig ranks, Initializer initializer) {
        try (Model model = Model.newInstance("model")) {
            Linear linear = Linear.builder().setUnits(2).optBias(false).build();
            linear.setInitializer(initializer, Parameter.Type.WEIGHT);
            linear.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(4, 3));
            model.setBlock(linear);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optOptimizer(
                                    Optimizer.adam()
                                            .optLearningRateTracker(Tracker.fixed(0.1f))
                                            .build());
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(4, 3));
                NDArray x = manager.arange(12f).reshape(4, 3).sin();
                NDList data = new NDList(x);
                NDList labels = new NDList(x.get(":, :2").mul(9));
                for (int i = 0; i < 2; i++) {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList predictions = trainer.forward(data, labels);
                        collector.backward(trainer.getLoss().evaluate(labels, predictions));
                    }
                    trainer.step();
                }
            }
            return linear.getParameters().valueAt(0).getArray().toFloatArray();
        }
    }
}
