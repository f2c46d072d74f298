package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.Autograd;

import org.testng.Assert;

import java.util.SplittableRandom;

/**
 * Arrays of small whole numbers: sums and products of a few are exact, whatever their order, so
 * that results are compared without a tolerance.
 */
public final class TestArrays {

    private TestArrays() {}

    /** Returns reproducible whole numbers from -8 to 8. */
    public static NDArray random(NDManager manager, long seed, Shape shape) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = random.nextInt(-8, 9);
        }
        return values.length == 0 ? manager.zeros(shape) : manager.create(values, shape);
    }

    /** Returns an array whose gradient is computed. */
    public static NDArray leaf(NDArray array) {
        array.setRequiresGradient(true);
        return array;
    }

    /**
     * Returns a multiple of an array, as a part of its graph. (DJL's {@code array.mul(2)} closes
     * the 2, which lies in the memory of a Java buffer: collected before the backward pass, which
     * needs it, it leaves a wrong gradient.)
     */
    public static NDArray times(NDArray array, float factor) {
        return array.mul(array.getManager().create(factor));
    }

    /** Asserts that two arrays have the same shape and values. */
    public static void assertSame(NDArray actual, NDArray expected, String what) {
        Assert.assertEquals(actual.getShape(), expected.getShape(), what);
        Assert.assertEquals(actual.toFloatArray(), expected.toFloatArray(), what);
    }

    /** Returns an array in float64. */
    public static NDArray wide(NDArray array) {
        return array.toType(DataType.FLOAT64, true);
    }

    /** Returns how far an array is from an exact one, in float64. */
    public static NDArray difference(NDArray actual, NDArray exact) {
        return wide(actual).sub(exact).abs();
    }

    /** Asserts that an array has these values, row by row. */
    public static void assertValues(NDArray actual, float... expected) {
        Assert.assertEquals(actual.toFloatArray(), expected);
    }

    /** Asserts that the gradient of a leaf is as expected. */
    public static void assertGradient(NDArray leaf, NDArray expected, String what) {
        try (NDArray gradient = Autograd.gradient(leaf)) {
            Assert.assertNotNull(gradient, what);
            assertSame(gradient, expected, what);
        }
    }
}
