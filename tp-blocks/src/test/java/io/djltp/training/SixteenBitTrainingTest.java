package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;

/**
 * A fused head whose weights are in 16 bits learns what DJL's trainer learns whose weights, in 32
 * bits, are rounded to 16 after each step.
 */
public class SixteenBitTrainingTest {

    private static final int STEPS = 5;

    /** A float16 has 11 bits. A sum in another order may round up instead of down, in any step. */
    private static final double ROUNDING = STEPS * Math.pow(2, -11);

    private static final float MOMENTUM = 0.5f;

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void equalsARoundedWeight(TrainerKind kind) {
        float[] expectedLosses = new float[STEPS];
        float[] losses = new float[STEPS];
        float[][] expected = train(TrainerKind.PLAIN, DataType.FLOAT32, expectedLosses);
        float[][] trained = train(kind, DataType.FLOAT16, losses);
        ArrayAssert.assertClose(trained[0], expected[0], ROUNDING, "weight");
        // DJL rounds the momentum of the bias too
        ArrayAssert.assertClose(trained[1], expected[1], 2 * ROUNDING, "bias");
        ArrayAssert.assertClose(losses, expectedLosses, ROUNDING, "losses");
    }

    private static float[][] train(TrainerKind kind, DataType type, float[] losses) {
        Block head =
                ClassificationHead.builder()
                        .setUnits(FusedTraining.CLASSES)
                        .optBatchShardedInput(true)
                        .build();
        List<Parameter> all = head.getParameters().values();
        Parameter weight = all.get(0);
        Optimizer sgd = Configs.sgd(0.3f, MOMENTUM);
        float[][] trained = new float[2][];
        try (NDManager parameters = NDManager.newBaseManager()) {
            Shape input = new Shape(FusedTraining.ROWS, FusedTraining.FEATURES);
            head.initialize(parameters, type, input);
            set(weight, TrainingRun.random(parameters, 7, weight.getArray().getShape().getShape()));
            FusedTraining.use(
                    kind,
                    head,
                    FusedTraining.loss(LossOptions.DEFAULT),
                    sgd,
                    (trainer, manager) -> {
                        for (int i = 0; i < STEPS; i++) {
                            NDArray data = rounded(FusedTraining.data(manager, i));
                            losses[i] =
                                    TrainingRun.backward(
                                            trainer,
                                            data.toType(type, false),
                                            FusedTraining.labels(manager, i));
                            trainer.step();
                            if (kind == TrainerKind.PLAIN) {
                                all.forEach(each -> set(each, each.getArray()));
                            }
                        }
                        trainer.close(); // hands the weight back
                        for (int i = 0; i < trained.length; i++) {
                            trained[i] = ArrayAssert.floats(all.get(i).getArray());
                        }
                    });
        }
        return trained;
    }

    /** Sets the numbers of a parameter, rounded to 16 bits. */
    private static void set(Parameter parameter, NDArray values) {
        NDArray array = parameter.getArray();
        rounded(values).toType(array.getDataType(), true).copyTo(array);
    }

    private static NDArray rounded(NDArray values) {
        return values.toType(DataType.FLOAT16, true).toType(DataType.FLOAT32, true);
    }
}
