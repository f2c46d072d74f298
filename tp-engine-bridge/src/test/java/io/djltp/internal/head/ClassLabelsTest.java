package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

/** Labels are classes, whatever their type is, or the error says which one is not. */
public class ClassLabelsTest {

    private static final int CLASSES = 7;
    private static final long[] LABELS = {6, 0, -100, 3};

    private NDManager manager;

    @BeforeClass
    public void open() {
        manager = NDManager.newBaseManager();
    }

    @AfterClass
    public void close() {
        manager.close();
    }

    @Test
    public void numbersOfAnyType() {
        for (DataType type :
                new DataType[] {
                    DataType.INT64,
                    DataType.INT32,
                    DataType.INT8,
                    DataType.FLOAT64,
                    DataType.FLOAT32,
                    DataType.FLOAT16 // DJL cannot convert to bfloat16
                }) {
            NDArray right = manager.create(LABELS).toType(type, false);
            Assert.assertEquals(ClassLabels.read(right, CLASSES, -100), LABELS);
            for (long label : new long[] {-1, CLASSES, -128}) {
                NDArray labels = manager.create(new long[] {1, label}).toType(type, false);
                assertThrows(
                        labels,
                        CLASSES,
                        "The label of row 1 is "
                                + label
                                + ", but the labels of 7 classes are the whole numbers 0 to 6 (or"
                                + " -100 for a row that does not count): correct the label, or"
                                + " give the last layer more classes");
            }
        }
        for (float label :
                new float[] {
                    1.5f,
                    -0.25f,
                    -100.5f,
                    Float.NaN,
                    Float.POSITIVE_INFINITY,
                    Float.NEGATIVE_INFINITY
                }) {
            NDArray labels = manager.create(new float[] {0, 1, 2, 3, label, 5}, new Shape(2, 3));
            String start = "The label of the position [1, 1] is " + label + ", but the labels of 7";
            assertThrows(labels, CLASSES, start);
            assertThrows(labels.toType(DataType.FLOAT64, false), CLASSES, start);
        }
    }

    /** 16,777,217 is 16,777,216 in float32. */
    @Test
    public void aNumberThatATypeDoesNotTellFromTheNext() {
        long many = 20_000_000;
        long large = 16_777_217;
        NDArray labels = manager.create(new long[] {5, large});
        Assert.assertEquals(ClassLabels.read(labels, many, -100), new long[] {5, large});
        NDArray wide = labels.toType(DataType.FLOAT64, true);
        Assert.assertEquals(ClassLabels.read(wide, many, -100), new long[] {5, large});
        assertThrows(
                labels.toType(DataType.FLOAT32, true),
                many,
                "The label of row 1 is 16777216, and float32 does not hold every whole number from"
                        + " 16777216 on: give the labels as INT64");
        assertThrows(
                manager.create(new long[] {2049}).toType(DataType.FLOAT16, true),
                3000,
                "The label of row 0 is 2048, and float16");
    }

    private static void assertThrows(NDArray labels, long classes, String start) {
        String message = Refusals.throwsArgument(() -> ClassLabels.read(labels, classes, -100));
        Assert.assertTrue(message.startsWith(start), message);
    }
}
