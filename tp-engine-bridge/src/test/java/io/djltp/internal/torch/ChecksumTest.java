package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.RecordedTest;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** A checksum sees a change of one bit, and the exchange of two values. */
public class ChecksumTest extends RecordedTest {

    private static void assertSeen(NDArray other, NDArray array, String what) {
        Assert.assertNotEquals(Checksum.of(other), Checksum.of(array), what);
    }

    @Test(timeOut = 60_000)
    public void oneChangedValueChangesIt() {
        for (long size : new long[] {1, 5, 1023, 1024, 1025, 5000}) {
            NDArray array = manager.arange((float) size);
            Assert.assertEquals(Checksum.of(array.duplicate()), Checksum.of(array));
            for (long place : new long[] {0, size / 2, size - 1}) {
                NDArray other = array.duplicate();
                float value = other.getFloat(place);
                other.set(new NDIndex("{}", place), Math.nextUp(value));
                assertSeen(other, array, size + " " + place);
            }
        }
    }

    /** As the same rows are in the batch of a process that has shuffled otherwise. */
    @Test(timeOut = 60_000)
    public void anExchangeOfTwoRowsOrValuesChangesIt() {
        long[][] shapes = {{3, 1}, {3, 1024}, {9, 256}, {4, 4, 512}, {3, 3, 32, 32}};
        for (long[] sizes : shapes) {
            Shape shape = new Shape(sizes);
            for (DataType type : new DataType[] {DataType.FLOAT32, DataType.INT64}) {
                NDArray rows = manager.arange((float) shape.size()).toType(type, false);
                NDArray array = rows.reshape(shape);
                for (int i = 1; i < shape.get(0); i++) {
                    NDArray other = array.duplicate();
                    other.set(new NDIndex(0), array.get(i));
                    other.set(new NDIndex(i), array.get(0));
                    assertSeen(other, array, shape + " " + type + i);
                }
            }
        }
    }

    /** As labels are. */
    @Test(timeOut = 60_000)
    public void smallNumbersAreToldApart() {
        int places = 7;
        int values = 3;
        for (DataType type : new DataType[] {DataType.INT32, DataType.INT64}) {
            Set<Long> sums = new HashSet<>();
            for (int i = 0; i < Math.pow(values, places); i++) {
                int[] labels = new int[places];
                for (int j = 0, rest = i; j < places; j++, rest /= values) {
                    labels[j] = rest % values;
                }
                try (NDArray array = manager.create(labels);
                        NDArray typed = array.toType(type, true)) {
                    Assert.assertTrue(sums.add(Checksum.of(typed)), type + " " + i);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void everyTypeAndShapeIsTaken() {
        for (DataType type :
                List.of(DataType.FLOAT16, DataType.FLOAT64, DataType.INT64, DataType.INT32)) {
            Shape shape = new Shape(3, 5);
            assertSeen(manager.zeros(shape, type), manager.ones(shape, type), "" + type);
        }
        Assert.assertEquals(Checksum.of(manager.zeros(new Shape(0, 4))), 0);
        Checksum.of(manager.ones(new Shape())); // a scalar
        NDArray matrix = manager.arange(12f).reshape(3, 4);
        assertSeen(matrix.transpose(), matrix, "transposed");
    }

    /** Of float32 and float64, with any sign and payload; another value is seen beside them. */
    @Test(timeOut = 60_000)
    public void allNaNAreAlike() {
        int size = 3000;
        float[] first = new float[size];
        float[] second = new float[size];
        for (int i = 0; i < size; i++) {
            boolean nan = i % 7 == 0;
            first[i] = nan ? Float.NaN : i;
            second[i] = nan ? Float.intBitsToFloat(0xffc00000 + i) : i;
        }
        NDArray a = manager.create(first);
        NDArray b = manager.create(second);
        assertSeen(b, a, "with all bits");
        long sum = Checksum.withOneNaN(a);
        Assert.assertEquals(Checksum.withOneNaN(b), sum);
        Assert.assertEquals(
                Checksum.withOneNaN(b.toType(DataType.FLOAT64, true)),
                Checksum.withOneNaN(a.toType(DataType.FLOAT64, true)));
        second[2999] = 1;
        Assert.assertNotEquals(Checksum.withOneNaN(manager.create(second)), sum);
        second[2999] = first[2999];
        second[7] = 0; // no NaN
        Assert.assertNotEquals(Checksum.withOneNaN(manager.create(second)), sum);
        NDArray numbers = manager.create(new int[] {1, Float.floatToRawIntBits(Float.NaN)});
        Assert.assertEquals(Checksum.withOneNaN(numbers), Checksum.of(numbers));
    }

    /** Also beside NaN, of more than the million elements that are looked at together. */
    @Test(timeOut = 60_000)
    public void anyElementOfALargeArrayCounts() {
        NDArray array = manager.zeros(new Shape((1 << 21) + 5));
        array.set(new NDIndex("0"), Float.NaN);
        for (long place : new long[] {1, 1 << 20, (1 << 21) + 4}) {
            NDArray other = array.duplicate();
            other.set(new NDIndex("{}", place), 1e-30f);
            assertSeen(other, array, "" + place);
            Assert.assertNotEquals(
                    Checksum.withOneNaN(other), Checksum.withOneNaN(array), "" + place);
        }
    }
}
