package io.djltp.testing;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;

import java.util.Arrays;
import java.util.List;

/** Assertions on the elements of arrays. */
public final class ArrayAssert {

    private ArrayAssert() {}

    /**
     * Asserts that two arrays agree within a tolerance.
     *
     * @param actual the actual elements
     * @param expected the expected elements
     * @param tolerance the difference that is allowed, relative to the largest expected element:
     *     what a sum in another order loses, it loses relative to its largest summands
     * @param what what is compared, for the message
     */
    public static void assertClose(
            float[] actual, float[] expected, double tolerance, String what) {
        Assert.assertEquals(actual.length, expected.length, what + ": number of elements");
        double largest = 0;
        for (float value : expected) {
            largest = Math.max(largest, Math.abs(value));
        }
        for (int i = 0; i < expected.length; i++) {
            // written so that a NaN fails
            if (!(Math.abs((double) actual[i] - expected[i]) <= tolerance * largest)) {
                Assert.fail(
                        what
                                + ": element "
                                + i
                                + " is "
                                + actual[i]
                                + " instead of "
                                + expected[i]
                                + " (largest: "
                                + largest
                                + ")");
            }
        }
    }

    /**
     * Asserts that two arrays agree within a tolerance, and in their shapes.
     *
     * @param actual the actual array
     * @param expected the expected array
     * @param tolerance the tolerance, see {@link #assertClose(float[], float[], double, String)}
     * @param what what is compared, for the message
     */
    public static void assertClose(
            NDArray actual, NDArray expected, double tolerance, String what) {
        Assert.assertEquals(actual.getShape(), expected.getShape(), what + ": shape");
        assertClose(floats(actual), floats(expected), tolerance, what);
    }

    /**
     * Asserts that as many arrays agree within a tolerance.
     *
     * @param actual the actual arrays
     * @param expected the expected arrays
     * @param tolerance the tolerance, see {@link #assertClose(float[], float[], double, String)}
     * @param what what is compared, for the message
     */
    public static void assertAllClose(
            List<float[]> actual, List<float[]> expected, double tolerance, String what) {
        Assert.assertEquals(actual.size(), expected.size(), what + ": number of arrays");
        for (int i = 0; i < expected.size(); i++) {
            assertClose(actual.get(i), expected.get(i), tolerance, what + " " + i);
        }
    }

    /**
     * Asserts that an array has exactly these elements.
     *
     * @param actual the actual array
     * @param expected the elements
     * @param shape the shape
     * @param what what is compared, for the message
     */
    public static void assertExact(NDArray actual, float[] expected, Shape shape, String what) {
        Assert.assertEquals(actual.getShape(), shape, what + ": shape");
        assertBitEqual(floats(actual), expected, what);
    }

    /**
     * Asserts that two arrays are the same bit for bit.
     *
     * @param actual the actual elements
     * @param expected the expected elements
     * @param what what is compared, for the message
     */
    public static void assertBitEqual(float[] actual, float[] expected, String what) {
        int[] bits = bits(actual);
        int[] others = bits(expected);
        int element = Arrays.mismatch(bits, others);
        if (element >= 0 && element < Math.min(bits.length, others.length)) {
            Assert.fail(
                    what
                            + ": element "
                            + element
                            + " is "
                            + actual[element]
                            + " instead of "
                            + expected[element]);
        }
        Assert.assertEquals(actual.length, expected.length, what + ": number of elements");
    }

    /**
     * Asserts that as many arrays are the same bit for bit.
     *
     * @param actual the actual arrays
     * @param expected the expected arrays
     * @param what what is compared, for the message
     */
    public static void assertAllBitEqual(
            List<float[]> actual, List<float[]> expected, String what) {
        Assert.assertEquals(actual.size(), expected.size(), what + ": number of arrays");
        for (int i = 0; i < expected.size(); i++) {
            assertBitEqual(actual.get(i), expected.get(i), what + " " + i);
        }
    }

    /**
     * Returns the elements of an array of any floating-point type.
     *
     * @param array the array
     * @return the elements
     */
    public static float[] floats(NDArray array) {
        try (NDArray wide = array.toType(DataType.FLOAT32, true)) {
            return wide.toFloatArray();
        }
    }

    /**
     * Returns numbers as an array.
     *
     * @param numbers the numbers
     * @return the array
     */
    public static float[] floats(List<Float> numbers) {
        float[] values = new float[numbers.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = numbers.get(i);
        }
        return values;
    }

    private static int[] bits(float[] values) {
        int[] bits = new int[values.length];
        for (int i = 0; i < bits.length; i++) {
            bits[i] = Float.floatToRawIntBits(values[i]);
        }
        return bits;
    }
}
