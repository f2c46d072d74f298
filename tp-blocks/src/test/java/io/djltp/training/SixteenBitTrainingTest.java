package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.bridge.LossOptions;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
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

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsARoundedWeight(TrainerKind kind) {
        List<Float> expectedLosses = new ArrayList<>();
        List<Float> losses = new ArrayList<>();
        float[] expected = train(TrainerKind.PLAIN, DataType.FLOAT32, expectedLosses);
        float[] weight = train(kind, DataType.FLOAT16, losses);
        ArrayAssert.assertClose(weight, expected, ROUNDING, "weight");
        ArrayAssert.assertClose(floats(losses), floats(expectedLosses), ROUNDING, "losses");
    }

    private static float[] train(TrainerKind kind, DataType type, List<Float> losses) {
        Block head =
                ColumnParallelLinear.builder()
                        .setUnits(FusedTraining.CLASSES)
                        .optBias(false)
                        .optFusedLoss(true)
                        .optBatchShardedInput(true)
                        .build();
        Parameter weight = head.getParameters().valueAt(0);
        Engine.getInstance().setRandomSeed(42);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(head);
            model.setDataType(type);
            head.initialize(
                    model.getNDManager(),
                    type,
                    new Shape(FusedTraining.ROWS, FusedTraining.FEATURES));
            set(weight, TrainingRun.random(manager, 7, 23, FusedTraining.FEATURES));
            Optimizer sgd =
                    Optimizer.sgd()
                            .setLearningRateTracker(Tracker.fixed(0.3f))
                            .optMomentum(MOMENTUM)
                            .build();
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(FusedTraining.loss(LossOptions.DEFAULT))
                            .optOptimizer(sgd)
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(FusedTraining.ROWS, FusedTraining.FEATURES));
                for (int i = 0; i < STEPS; i++) {
                    NDArray data = rounded(FusedTraining.data(manager, i)).toType(type, false);
                    losses.add(
                            TrainingRun.backward(trainer, data, FusedTraining.labels(manager, i)));
                    trainer.step();
                    if (kind == TrainerKind.PLAIN) {
                        set(weight, weight.getArray());
                    }
                }
            }
            return weight.getArray().toType(DataType.FLOAT32, true).toFloatArray();
        }
    }

    /** Sets the numbers of a parameter, rounded to 16 bits. */
    private static void set(Parameter parameter, NDArray values) {
        NDArray array = parameter.getArray();
        rounded(values).toType(array.getDataType(), true).copyTo(array);
    }

    private static NDArray rounded(NDArray values) {
        return values.toType(DataType.FLOAT16, true).toType(DataType.FLOAT32, true);
    }

    private static float[] floats(List<Float> values) {
        float[] floats = new float[values.size()];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = values.get(i);
        }
        return floats;
    }
}
