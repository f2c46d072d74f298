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
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.testing.Blocks;
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
public class Float64StepTest {

    private static double number(int seed, int i) {
        return (i * 7 + seed * 13) % 23 / 23.0 - 0.5;
    }

    @DataProvider
    public Object[][] wide() {
        return TrainerKind.rows(TENSOR_1, TENSOR_3, DATA_3, MIXED_3, MESH_3X2);
    }

    @Test(dataProvider = "wide", timeOut = 60_000)
    public void isExact(TrainerKind kind) {
        ColumnParallelLinear.Builder builder = ColumnParallelLinear.builder().setUnits(4);
        builder.optBias(false).optBatchShardedInput(true).optGatherOutput(true);
        Block layer = builder.build();
        layer.setInitializer(new ConstantInitializer(0.125f), Parameter.Type.WEIGHT);
        double loss;
        double[] actual;
        try (Model model = Blocks.model(layer);
                NDManager manager = NDManager.newBaseManager()) {
            model.setDataType(DataType.FLOAT64);
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), Configs.sgd(1));
            try (Trainer trainer = kind.open(model, config, new Shape(5, 3))) {
                NDList labels = new NDList(wide(manager, 7, 4));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(new NDList(wide(manager, 1, 3)), labels);
                    NDArray value = trainer.getLoss().evaluate(labels, output);
                    collector.backward(value);
                    loss = value.getDouble();
                }
                trainer.step();
            }
            actual = layer.getParameters().valueAt(0).getArray().toDoubleArray();
        }
        double[] expected = new double[12];
        assertEquals(loss, byDefinition(expected), 1e-14);
        assertEquals(actual, expected, 1e-14);
    }

    /** Row by row; returns the loss. */
    private static double byDefinition(double[] weight) {
        Arrays.fill(weight, 0.125);
        double mean = 0;
        for (int row = 0; row < 5; row++) {
            for (int unit = 0; unit < 4; unit++) {
                double error = -number(7, row * 4 + unit);
                for (int i = 0; i < 3; i++) {
                    error += 0.125 * number(1, row * 3 + i);
                }
                mean += error * error / 2 / 20;
                for (int i = 0; i < 3; i++) {
                    weight[unit * 3 + i] -= error * number(1, row * 3 + i) / 20;
                }
            }
        }
        return mean;
    }

    private static NDArray wide(NDManager manager, int seed, int features) {
        double[] values = new double[5 * features];
        for (int i = 0; i < values.length; i++) {
            values[i] = number(seed, i);
        }
        return manager.create(values, new Shape(5, features));
    }
}
