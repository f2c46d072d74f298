package io.djltp.internal.torch;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.testing.RecordedTest;

import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/** A mask follows from its key and the places of its elements, and from nothing else. */
public class DropoutMaskTest extends RecordedTest {

    private static final DropoutMask.Part WHOLE = DropoutMask.Part.from(0);

    private NDArray mask(long key, float rate, DropoutMask.Part part, long... shape) {
        NDArray like = manager.zeros(new Shape(shape));
        NDArray mask = DropoutMask.of(like, key, rate, part);
        float kept = rate < 1 ? 1 / (float) (1 - (double) rate) : 1;
        NDArray ofGpu = // by the operations that a GPU makes
                TorchScope.arrayWithoutGraph(
                        manager,
                        () ->
                                DropoutMask.onDevice(
                                        TensorView.of(like).tensor(), key, rate, kept, part));
        Assert.assertEquals(ofGpu, mask);
        ofGpu.close();
        return mask;
    }

    @Test
    public void aMaskIsTheSameEveryTimeAndDrawsNothing() {
        Engine.getInstance().setRandomSeed(3);
        long before = RandomDraws.fingerprint();
        float[] first = mask(5, 0.3f, WHOLE, 7, 900).toFloatArray();
        Assert.assertEquals(RandomDraws.fingerprint(), before);
        manager.randomNormal(new Shape(10)).close();
        Assert.assertNotEquals(RandomDraws.fingerprint(), before);
        Assert.assertEquals(mask(5, 0.3f, WHOLE, 7, 900).toFloatArray(), first);
        Assert.assertFalse(Arrays.equals(mask(6, 0.3f, WHOLE, 7, 900).toFloatArray(), first));
        Engine.getInstance().setRandomSeed(3);
        Assert.assertEquals(RandomDraws.fingerprint(), before);
    }

    @Test
    public void theNumbersAreThoseOfSplitMix64() {
        SplittableRandom random = new SplittableRandom(11);
        for (float value : mask(11, 0.4f, WHOLE, 9000).toFloatArray()) {
            boolean zero = (random.nextLong() >>> 1) * 0x1p-63 < 0.4f;
            Assert.assertEquals(value, zero ? 0 : 1 / (1 - 0.4f), 1e-6f);
        }
    }

    @Test
    public void aPartOfTheMaskIsTheMaskOfThePart() {
        int rows = 37;
        int width = 500; // more than one chunk, and rows that chunks cut
        NDArray whole = mask(8, 0.5f, WHOLE, rows, width);
        DropoutMask.Part columns = new DropoutMask.Part(List.of(new ShardRange(201, 133)), width);
        Assert.assertEquals(mask(8, 0.5f, columns, rows, 133), whole.get(":, 201:334"));
        // the shard of a stacked projection: three ranges, the last one first
        DropoutMask.Part ranges =
                new DropoutMask.Part(
                        List.of(
                                new ShardRange(480, 20),
                                new ShardRange(0, 33),
                                new ShardRange(100, 7)),
                        width);
        NDList parts =
                new NDList(whole.get(":, 480:500"), whole.get(":, 0:33"), whole.get(":, 100:107"));
        Assert.assertEquals(mask(8, 0.5f, ranges, rows, 60), NDArrays.concat(parts, 1));
        DropoutMask.Part later = DropoutMask.Part.from(20L * width);
        Assert.assertEquals(mask(8, 0.5f, later, 12, width), whole.get("20:32"));
    }

    @Test
    public void theShareOfZerosIsTheRate() {
        int size = 1 << 18;
        for (float rate : new float[] {0, 0.1f, 0.5f, 0.9f, 1}) {
            float[] values = mask(21, rate, WHOLE, size).toFloatArray();
            int zeros = 0;
            int same = 0; // of two neighbours
            for (int i = 0; i < size; i++) {
                zeros += values[i] == 0 ? 1 : 0;
                same += i > 0 && values[i] == values[i - 1] ? 1 : 0;
                Assert.assertTrue(values[i] == 0 || Math.abs(values[i] * (1 - rate) - 1) < 1e-6);
            }
            double deviation = 5 * Math.sqrt(size * 0.25); // 1 in 2 million
            Assert.assertEquals(zeros, rate * size, deviation * Math.min(1, rate * 10));
            double pairs = rate * rate + (1 - rate) * (1 - rate);
            Assert.assertEquals(same, pairs * size, 2 * deviation);
        }
    }

    @Test
    public void aMaskHasTheTypeOfItsArray() {
        float[] single = mask(4, 0.5f, WHOLE, 64).toFloatArray();
        Tensor zeros = TensorView.of(manager.zeros(new Shape(64))).tensor();
        for (ScalarType type :
                new ScalarType[] {ScalarType.Half, ScalarType.BFloat16, ScalarType.Double}) {
            NDArray like = TensorView.toArray(zeros.to(type), manager);
            Tensor mask = TensorView.of(DropoutMask.of(like, 4, 0.5f, WHOLE)).tensor();
            Assert.assertEquals(mask.scalar_type().intern(), type);
            NDArray floats = TensorView.toArray(mask.to(ScalarType.Float), manager);
            Assert.assertEquals(floats.toFloatArray(), single);
        }
        Assert.assertEquals(mask(4, 0.5f, WHOLE, 0, 3).getShape(), new Shape(0, 3));
    }

    @Test
    public void masksLeaveNothingBehind() {
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
