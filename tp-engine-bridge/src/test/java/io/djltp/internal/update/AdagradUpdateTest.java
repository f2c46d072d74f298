package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Map;

/** Adagrad, which DJL has no operator for on PyTorch, is that of PyTorch, and DJL's formula. */
public class AdagradUpdateTest {

    /**
     * The weight after 50 steps of {@code torch.optim.Adagrad(weight, lr=0.1 / (1 + step % 7),
     * weight_decay=0, eps=1e-8)} of PyTorch 1.13 in float64, on {@link #numbers}.
     */
    private static final double[] PLAIN = {
        0.8939938846526202, 1.0393511074264636, 0.7035638936080053, 0.05038580142930887,
        -0.6982681980549321, -1.0443673496853, -0.8824527785723058, -0.32027271320648565,
        0.4457460191907899, 0.9748124640509626, 1.0006002790732849, 0.5691049342623975
    };

    /** With {@code weight_decay=0.1, eps=1e-3}. */
    private static final double[] DECAYED = {
        0.8349611702762654, 0.9848028806026387, 0.6688713064130588, 0.04764004676513154,
        -0.646053831273315, -0.9855292853705437, -0.8389102789836211, -0.3033427208417019,
        0.40784410749829286, 0.9146259344962328, 0.9497251890797593, 0.5406062845825597
    };

    /** The sums of the squared gradients then. */
    private static final double[] SUMS_OF_DECAYED = {
        24.10682203935681, 27.538229754714752, 27.073645880213352, 23.504914784585303,
        22.996992305491265, 26.427794544821634, 27.869343101288436, 24.841917654219163,
        22.559664821588242, 24.9802753123587, 27.905481961269878, 26.302802299563954
    };

    private static final Shape SHAPE = new Shape(4, 3);
    private static final int STEPS = 50;

    private static NDArray numbers(NDManager manager, int step, DataType type) {
        double[] numbers = new double[12];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = Math.sin(1.0 + 3 * step + 7 * i);
        }
        return manager.create(numbers, SHAPE).toType(type, false);
    }

    private static double[] doubles(NDArray array) {
        return array.toType(DataType.FLOAT64, false).toDoubleArray();
    }

    private static void assertClose(NDArray actual, double[] expected, double tolerance) {
        double[] values = doubles(actual);
        for (int i = 0; i < expected.length; i++) {
            Assert.assertEquals(values[i], expected[i], tolerance * Math.abs(expected[i]) + 1e-7);
        }
    }

    @DataProvider
    public Object[][] types() {
        return new Object[][] {{DataType.FLOAT32, 1e-6}, {DataType.FLOAT64, 1e-12}};
    }

    @Test(dataProvider = "types", timeOut = 60_000)
    public void equalsPyTorch(DataType type, double tolerance) {
        WeightUpdate.Settings decay = new WeightUpdate.Settings(0.1f, 1, -1);
        // gradients that are doubled and halved again take the way of those that are limited
        WeightUpdate.Settings halved = new WeightUpdate.Settings(0, 0.5f, 100);
        // decay and rate are floats: what they are off by shows in float64
        double rounded = Math.max(tolerance, 1e-7);
        assertEqual(type, WeightUpdate.Settings.DEFAULT, 1e-8f, 1, PLAIN, null, rounded);
        assertEqual(type, halved, 1e-8f, 2, PLAIN, null, rounded);
        assertEqual(type, decay, 1e-3f, 1, DECAYED, SUMS_OF_DECAYED, rounded);
    }

    private static void assertEqual(
            DataType type,
            WeightUpdate.Settings settings,
            float epsilon,
            int factor,
            double[] expected,
            double[] expectedSums,
            double tolerance) {
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate update = WeightUpdate.adagrad(settings, epsilon)) {
            NDArray weight = numbers(manager, 0, type);
            for (int step = 1; step <= STEPS; step++) {
                update.begin(0.1f / (1 + step % 7), step);
                update.run(weight, numbers(manager, step, type).mul(factor));
            }
            assertClose(weight, expected, tolerance);
            Map<String, NDArray> state = update.getState(manager);
            Assert.assertEquals(state.keySet().toString(), "[sums]");
            Assert.assertEquals(state.get("sums").getDataType(), type);
            if (expectedSums != null) {
                assertClose(state.get("sums"), expectedSums, tolerance);
            }
        }
    }

    /** Of a table of which a step uses few rows, these move as by a gradient of the whole table. */
    @Test(timeOut = 60_000)
    public void fewRows() {
        try (NDManager manager = NDManager.newBaseManager();
                WeightUpdate rows = WeightUpdate.adagrad(WeightUpdate.Settings.DEFAULT, 1e-8f);
                WeightUpdate whole = WeightUpdate.adagrad(WeightUpdate.Settings.DEFAULT, 1e-8f)) {
            NDArray table = manager.ones(new Shape(5, 2));
            NDArray expected = manager.ones(new Shape(5, 2));
            for (int step = 1; step <= 3; step++) {
                rows.begin(0.1f, step);
                whole.begin(0.1f, step);
                NDArray sums = manager.create(new float[] {step, 2, -3, 4, 5, 6}, new Shape(3, 2));
                EmbeddingBags.padded(new int[] {2, 4, 2}, 1, false).update(table, sums, rows);
                float[] gradient = {0, 0, 0, 0, step + 5, 2 + 6, 0, 0, -3, 4};
                whole.run(expected, manager.create(gradient, new Shape(5, 2)));
            }
            assertClose(table, doubles(expected), 1e-6);
            NDArray state = rows.getState(manager).get("sums");
            assertClose(state, doubles(whole.getState(manager).get("sums")), 1e-6);
        }
    }
}
