package io.djltp.internal.torch;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;

import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/** A mask follows from its key and the places of its elements, and from nothing else. */
public class DropoutMaskTest {

    private static final DropoutMask.Part WHOLE = DropoutMask.Part.from(0);

    @Test
    public void aMaskIsTheSameEveryTimeAndDrawsNothing() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray like = manager.zeros(new Shape(7, 900));
            Engine.getInstance().setRandomSeed(3);
            long before = RandomDraws.fingerprint();
            float[] first = DropoutMask.of(like, 5, 0.3f, WHOLE).toFloatArray();
            Assert.assertEquals(RandomDraws.fingerprint(), before);
            manager.randomNormal(new Shape(10)).close();
            Assert.assertNotEquals(RandomDraws.fingerprint(), before);
            Assert.assertEquals(DropoutMask.of(like, 5, 0.3f, WHOLE).toFloatArray(), first);
            float[] other = DropoutMask.of(like, 6, 0.3f, WHOLE).toFloatArray();
            Assert.assertFalse(Arrays.equals(other, first));
            Engine.getInstance().setRandomSeed(3);
            Assert.assertEquals(RandomDraws.fingerprint(), before);
        }
    }

    @Test
    public void theNumbersAreThoseOfSplitMix64() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray mask = DropoutMask.of(manager.zeros(new Shape(9000)), 11, 0.4f, WHOLE);
            SplittableRandom random = new SplittableRandom(11);
            for (float value : mask.toFloatArray()) {
                boolean zero = (random.nextLong() >>> 1) * 0x1p-63 < 0.4f;
                Assert.assertEquals(value, zero ? 0 : 1 / (1 - 0.4f), 1e-6f);
            }
        }
    }

    @Test
    public void aPartOfTheMaskIsTheMaskOfThePart() {
        int rows = 37;
        int columns = 500; // more than one chunk, and rows that chunks cut
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray whole = DropoutMask.of(manager.zeros(new Shape(rows, columns)), 8, 0.5f, WHOLE);
            NDArray columnsPart =
                    DropoutMask.of(
                            manager.zeros(new Shape(rows, 133)),
                            8,
                            0.5f,
                            new DropoutMask.Part(List.of(new ShardRange(201, 133)), columns));
            Assert.assertEquals(columnsPart, whole.get(":, 201:334"));
            // the shard of a stacked projection: three ranges, the last one first
            NDArray ranges =
                    DropoutMask.of(
                            manager.zeros(new Shape(rows, 60)),
                            8,
                            0.5f,
                            new DropoutMask.Part(
                                    List.of(
                                            new ShardRange(480, 20),
                                            new ShardRange(0, 33),
                                            new ShardRange(100, 7)),
                                    columns));
            NDList parts =
                    new NDList(
                            whole.get(":, 480:500"), whole.get(":, 0:33"), whole.get(":, 100:107"));
            Assert.assertEquals(ranges, NDArrays.concat(parts, 1));
            NDArray rowsPart =
                    DropoutMask.of(
                            manager.zeros(new Shape(12, columns)),
                            8,
                            0.5f,
                            DropoutMask.Part.from(20L * columns));
            Assert.assertEquals(rowsPart, whole.get("20:32"));
        }
    }

    @Test
    public void theShareOfZerosIsTheRate() {
        int size = 1 << 18;
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray like = manager.zeros(new Shape(size));
            for (float rate : new float[] {0, 0.1f, 0.5f, 0.9f, 1}) {
                float[] values = DropoutMask.of(like, 21, rate, WHOLE).toFloatArray();
                int zeros = 0;
                int same = 0; // of two neighbours
                for (int i = 0; i < size; i++) {
                    zeros += values[i] == 0 ? 1 : 0;
                    same += i > 0 && values[i] == values[i - 1] ? 1 : 0;
                    Assert.assertTrue(
                            values[i] == 0 || Math.abs(values[i] * (1 - rate) - 1) < 1e-6);
                }
                double deviation = 5 * Math.sqrt(size * 0.25); // 1 in 2 million
                Assert.assertEquals(zeros, rate * size, deviation * Math.min(1, rate * 10));
                double pairs = rate * rate + (1 - rate) * (1 - rate);
                Assert.assertEquals(same, pairs * size, 2 * deviation);
            }
        }
    }

    @Test
    public void aMaskHasTheTypeOfItsArray() {
        try (NDManager manager = NDManager.newBaseManager()) {
            float[] single =
                    DropoutMask.of(manager.zeros(new Shape(64)), 4, 0.5f, WHOLE).toFloatArray();
            Tensor zeros = TensorView.of(manager.zeros(new Shape(64))).tensor();
            for (ScalarType type :
                    new ScalarType[] {ScalarType.Half, ScalarType.BFloat16, ScalarType.Double}) {
                NDArray like = TensorView.toArray(zeros.to(type), manager);
                Tensor mask = TensorView.of(DropoutMask.of(like, 4, 0.5f, WHOLE)).tensor();
                Assert.assertEquals(mask.scalar_type().intern(), type);
                float[] values =
                        TensorView.toArray(mask.to(ScalarType.Float), manager).toFloatArray();
                Assert.assertEquals(values, single);
            }
            Assert.assertEquals(
                    DropoutMask.of(manager.zeros(new Shape(0, 3)), 4, 0.5f, WHOLE).getShape(),
                    new Shape(0, 3));
        }
    }

    @Test
    public void masksLeaveNothingBehind() {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray like = manager.zeros(new Shape(100, 100), DataType.FLOAT64);
            for (int i = 0; i < 1100; i++) {
                if (i == 100) {
                    System.gc();
                }
                long before = Pointer.totalCount();
                DropoutMask.of(like, i, 0.5f, WHOLE).close();
                RandomDraws.fingerprint();
                Assert.assertTrue(Pointer.totalCount() <= before, "mask " + i);
            }
            Assert.assertEquals(manager.getManagedArrays().size(), 1);
        }
    }
}
