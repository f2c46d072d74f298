package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.libtorch.LibTorch;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.HashSet;
import java.util.Set;

/** A checksum sees a change of one bit, and the exchange of two values. */
public class ChecksumTest {

    @Test(timeOut = 60_000)
    public void oneChangedValueChangesIt() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
            for (long size : new long[] {1, 5, 1023, 1024, 1025, 5000}) {
                NDArray array = manager.arange((float) size);
                long sum = Checksum.of(array);
                Assert.assertEquals(Checksum.of(array.duplicate()), sum);
                for (long place : new long[] {0, size / 2, size - 1}) {
                    NDArray other = array.duplicate();
                    float value = other.getFloat(place);
                    other.set(new NDIndex("{}", place), Math.nextUp(value));
                    Assert.assertNotEquals(Checksum.of(other), sum, size + " " + place);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void anExchangeOfTwoValuesChangesIt() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray first = manager.create(new float[] {1, 2, 3});
            NDArray second = manager.create(new float[] {2, 1, 3});
            Assert.assertNotEquals(Checksum.of(first), Checksum.of(second));
        }
    }

    /** As the same rows are in the batch of a process that has shuffled otherwise. */
    @Test(timeOut = 60_000)
    public void anExchangeOfTwoRowsChangesIt() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
            for (Shape shape :
                    new Shape[] {
                        new Shape(3, 1024),
                        new Shape(9, 256),
                        new Shape(4, 4, 512),
                        new Shape(3, 3, 32, 32)
                    }) {
                for (DataType type : new DataType[] {DataType.FLOAT32, DataType.INT64}) {
                    NDArray rows = manager.arange((float) shape.size()).toType(type, false);
                    NDArray array = rows.reshape(shape);
                    long sum = Checksum.of(array);
                    for (int i = 1; i < shape.get(0); i++) {
                        NDArray other = array.duplicate();
                        other.set(new NDIndex(0), array.get(i));
                        other.set(new NDIndex(i), array.get(0));
                        Assert.assertNotEquals(Checksum.of(other), sum, shape + " " + type + i);
                    }
                }
            }
        }
    }

    /** As labels are. */
    @Test(timeOut = 60_000)
    public void smallNumbersAreToldApart() {
        LibTorch.load();
        int places = 7;
        int values = 3;
        try (NDManager manager = NDManager.newBaseManager()) {
            for (DataType type : new DataType[] {DataType.INT32, DataType.INT64}) {
                Set<Long> sums = new HashSet<>();
                for (int i = 0; i < Math.pow(values, places); i++) {
                    String digits = Integer.toString(i, values);
                    int[] labels = new int[places];
                    for (int j = 0; j < digits.length(); j++) {
                        labels[j] = digits.charAt(digits.length() - 1 - j) - '0';
                    }
                    try (NDArray array = manager.create(labels);
                            NDArray typed = array.toType(type, true)) {
                        Assert.assertTrue(sums.add(Checksum.of(typed)), type + " " + i);
                    }
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void everyTypeAndShapeIsTaken() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
            for (DataType type :
                    new DataType[] {
                        DataType.FLOAT16, DataType.FLOAT64, DataType.INT64, DataType.INT32
                    }) {
                NDArray zeros = manager.zeros(new Shape(3, 5), type);
                NDArray ones = manager.ones(new Shape(3, 5), type);
                Assert.assertNotEquals(Checksum.of(zeros), Checksum.of(ones), type.toString());
            }
            Assert.assertEquals(Checksum.of(manager.zeros(new Shape(0, 4))), 0);
            Checksum.of(manager.ones(new Shape())); // a scalar
            NDArray matrix = manager.arange(12f).reshape(3, 4);
            Assert.assertNotEquals(Checksum.of(matrix.transpose()), Checksum.of(matrix));
        }
    }

    /** Of float32 and float64, with any sign and payload; another value is seen beside them. */
    @Test(timeOut = 60_000)
    public void allNaNAreAlike() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
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
            Assert.assertNotEquals(Checksum.of(b), Checksum.of(a));
            long sum = Checksum.withOneNaN(a);
            Assert.assertEquals(Checksum.withOneNaN(b), sum);
            NDArray wide = b.toType(DataType.FLOAT64, true);
            Assert.assertEquals(
                    Checksum.withOneNaN(wide),
                    Checksum.withOneNaN(a.toType(DataType.FLOAT64, true)));
            second[2999] = 1;
            Assert.assertNotEquals(Checksum.withOneNaN(manager.create(second)), sum);
            second[2999] = first[2999];
            second[7] = 0; // no NaN
            Assert.assertNotEquals(Checksum.withOneNaN(manager.create(second)), sum);
            NDArray numbers = manager.create(new int[] {1, Float.floatToRawIntBits(Float.NaN)});
            Assert.assertEquals(Checksum.withOneNaN(numbers), Checksum.of(numbers));
        }
    }

    /** More than the million elements that are looked at together. */
    @Test(timeOut = 60_000)
    public void anyElementOfALargeArrayCountsBesideNaN() {
        LibTorch.load();
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray array = manager.zeros(new Shape((1 << 21) + 5));
            array.set(new NDIndex("0"), Float.NaN);
            long sum = Checksum.withOneNaN(array);
            for (long place : new long[] {1, 1 << 20, (1 << 21) + 4}) {
                NDArray other = array.duplicate();
                other.set(new NDIndex("{}", place), 1e-30f);
                Assert.assertNotEquals(Checksum.withOneNaN(other), sum, "" + place);
            }
        }
    }
}
