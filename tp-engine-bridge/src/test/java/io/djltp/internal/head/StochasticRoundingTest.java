package io.djltp.internal.head;

import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** Many roundings of a number have it as their mean, and each is one of its two neighbours. */
@SuppressWarnings("try") // a scope is used by being open
public class StochasticRoundingTest {

    private static final int CLASSES = 64;
    private static final int FEATURES = 48;
    private static final int STEPS = 40;

    @BeforeClass
    public void load() {
        LibTorch.load();
    }

    @DataProvider
    public Object[][] types() {
        return new Object[][] {{ScalarType.BFloat16}, {ScalarType.Half}};
    }

    private static Tensor full(float value) {
        return torch.full(
                new long[] {CLASSES, FEATURES},
                new Scalar(value),
                new TensorOptions(ScalarType.Float));
    }

    private static Tensor round(long key, long start, Tensor rows, ScalarType type) {
        new StochasticRounding(key, column -> column, rows.to(type)).apply(start, rows);
        return rows.to(type).to(ScalarType.Float);
    }

    private static float[] floats(Tensor tensor) {
        float[] values = new float[(int) tensor.numel()];
        new FloatPointer(tensor.contiguous().data_ptr_float()).get(values);
        return values;
    }

    /** Also at a power of two, of both signs, and where float16 has fewer digits than elsewhere. */
    @Test(dataProvider = "types", timeOut = 60_000)
    public void isUnbiased(ScalarType type) {
        for (float value :
                new float[] {
                    0.3f, -0.3f, 1.0001f, -1.0001f, 0.99999f, 1e-3f, 7.77e-6f, -3.1e-7f, 1234.567f
                }) {
            double sum = 0;
            double least = Double.MAX_VALUE;
            double largest = -Double.MAX_VALUE;
            for (int step = 0; step < STEPS; step++) {
                try (PointerScope scope = new PointerScope()) {
                    for (float each : floats(round(step, 0, full(value), type))) {
                        sum += each;
                        least = Math.min(least, each);
                        largest = Math.max(largest, each);
                    }
                }
            }
            int count = STEPS * CLASSES * FEATURES;
            String what = value + " in " + type;
            Assert.assertTrue(least <= value && value <= largest, what);
            double distance = largest - least;
            double relative = type == ScalarType.Half ? 0x1p-10 : 0x1p-7;
            double most = Math.abs(value) * relative;
            Assert.assertTrue(
                    distance <= (type == ScalarType.Half ? Math.max(most, 0x1p-24) : most),
                    what + ": neighbours are " + distance + " apart");
            double up = (value - least) / distance;
            double error = Math.sqrt(up * (1 - up) / count);
            Assert.assertEquals((sum / count - least) / distance, up, 5 * error + 0x1p-12, what);
        }
    }

    /** Zero too, of which there are many in a weight that was never updated. */
    @Test(dataProvider = "types", timeOut = 60_000)
    public void leavesWhatSixteenBitsHold(ScalarType type) {
        try (PointerScope scope = new PointerScope()) {
            Tensor rows = torch.randn(CLASSES, FEATURES).mul_(new Scalar(1e-4f));
            rows.narrow(0, 0, 8).zero_();
            rows.narrow(0, 8, 8).mul_(new Scalar(1e5f));
            Tensor kept = rows.to(type).to(ScalarType.Float);
            for (int step = 0; step < STEPS; step++) {
                Assert.assertEquals(floats(round(step, 0, kept.clone(), type)), floats(kept));
            }
        }
    }

    /** The place of a row is that of its class, and seeds and steps have others. */
    @Test(dataProvider = "types", timeOut = 60_000)
    public void followsFromKeyClassAndFeature(ScalarType type) {
        try (PointerScope scope = new PointerScope()) {
            Tensor rows = torch.randn(CLASSES, FEATURES);
            float[] whole = floats(round(5, 0, rows.clone(), type));
            Tensor part = rows.narrow(0, 10, 7).clone();
            float[] expected = new float[7 * FEATURES];
            System.arraycopy(whole, 10 * FEATURES, expected, 0, expected.length);
            Assert.assertEquals(floats(round(5, 10, part, type)), expected);
            Assert.assertNotEquals(floats(round(6, 0, rows.clone(), type)), whole);
        }
    }
}
