package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

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
        TrainerKind kind = new TrainerKind(mode, ranks);
        float[] dense = train(kind, (m, shape, type) -> m.create(ROWS, WEIGHT));
        float[] turned =
                train(kind, (m, shape, type) -> m.create(COLUMNS, new Shape(3, 2)).transpose());
        assertEquals(turned, dense);
    }

    /** Returns the weight after two steps. */
    private static float[] train(TrainerKind kind, Initializer initializer) {
        try (Model model = Model.newInstance("model");
                NDManager manager = NDManager.newBaseManager()) {
            Linear linear = linear(2, false);
            linear.setInitializer(initializer, Parameter.Type.WEIGHT);
            linear.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(4, 3));
            model.setBlock(linear);
            try (Trainer trainer =
                    kind.open(model, Configs.of(Loss.l2Loss(), Configs.adam(0.1f)))) {
                trainer.initialize(new Shape(4, 3));
                NDArray x = manager.arange(12f).reshape(4, 3).sin();
                for (int i = 0; i < 2; i++) {
                    backward(trainer, x, x.get(":, :2").mul(9));
                    trainer.step();
                }
            }
            return weights(linear).get(0);
        }
    }
}
