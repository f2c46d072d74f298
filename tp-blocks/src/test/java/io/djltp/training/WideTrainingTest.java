package io.djltp.training;

import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;

/**
 * A step in float64 is exact in float64: of {@code y = x W^T} with the mean of {@code (t - y)^2 /
 * 2} and a rate of 1, {@code W - mean (y - t)^T x}. DJL's own trainer takes no step in float64: its
 * check of the first gradients reads float32.
 */
public class WideTrainingTest {

    private static final int ROWS = 5;
    private static final int FEATURES = 3;
    private static final int UNITS = 4;
    private static final double WEIGHT = 0.125;

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_1, TENSOR_3, DATA_3, MIXED_3, MESH_3X2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aStepIsExact(TrainerKind kind) {
        ColumnParallelLinear layer =
                ColumnParallelLinear.builder()
                        .setUnits(UNITS)
                        .optBias(false)
                        .optBatchShardedInput(true)
                        .optGatherOutput(true)
                        .build();
        layer.setInitializer(new ConstantInitializer((float) WEIGHT), Parameter.Type.WEIGHT);
        double loss;
        try (Model model = Model.newInstance("wide");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(layer);
            model.setDataType(DataType.FLOAT64);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), Configs.sgd(1));
            try (Trainer trainer = kind.open(model, config, new Shape(ROWS, FEATURES))) {
                NDList labels = new NDList(array(manager, 7, UNITS));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output =
                            trainer.forward(new NDList(array(manager, 1, FEATURES)), labels);
                    NDArray value = trainer.getLoss().evaluate(labels, output);
                    collector.backward(value);
                    loss = value.getDouble();
                }
                trainer.step();
            }
            assertExact(layer.getParameters().get(0).getValue().getArray(), loss);
        }
    }

    /** By the definition, row by row. */
    private static void assertExact(NDArray weight, double loss) {
        double[] expected = new double[UNITS * FEATURES];
        Arrays.fill(expected, WEIGHT);
        double mean = 0;
        for (int row = 0; row < ROWS; row++) {
            for (int unit = 0; unit < UNITS; unit++) {
                double error = -number(7, row * UNITS + unit);
                for (int i = 0; i < FEATURES; i++) {
                    error += WEIGHT * number(1, row * FEATURES + i);
                }
                mean += error * error / 2 / (ROWS * UNITS);
                for (int i = 0; i < FEATURES; i++) {
                    expected[unit * FEATURES + i] -=
                            error * number(1, row * FEATURES + i) / (ROWS * UNITS);
                }
            }
        }
        assertEquals(loss, mean, 1e-14);
        double[] actual = weight.toDoubleArray();
        for (int i = 0; i < expected.length; i++) {
            assertEquals(actual[i], expected[i], 1e-14, "element " + i);
        }
    }

    private static double number(int seed, int i) {
        return (i * 7 + seed) % 23 / 23.0 - 0.5;
    }

    private static NDArray array(NDManager manager, int seed, int features) {
        double[] values = new double[ROWS * features];
        for (int i = 0; i < values.length; i++) {
            values[i] = number(seed, i);
        }
        return manager.create(values, new Shape(ROWS, features));
    }
}
