package io.djltp.internal.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.testing.NeededArithmetic;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestArrays;
import io.djltp.torch.Emulated;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.Arrays;

/** Products of linear layers in bfloat16 keep the bound that is argued for them. */
@SuppressWarnings("try") // a mode is used by being open
public class LinearProductTest extends RecordedTest {

    /**
     * Each element of the output and of both gradients is within the bound of the class's Javadoc
     * from the exact one, of sizes that no vector divides. That of the bias is a float32 sum.
     */
    @Test
    public void elementsAreWithinTheBound() {
        NeededArithmetic.bfloat16();
        assertWithinTheBound(Precision.BFLOAT16);
    }

    /** The same of 11 bits: the arithmetic of GPUs, here on the processor, which is slow at it. */
    @Test
    public void elementsInFloat16AreWithinTheBound() {
        try (Emulated allowed = new Emulated(Precision.FLOAT16)) {
            assertWithinTheBound(Precision.FLOAT16);
        }
    }

    private void assertWithinTheBound(Precision precision) {
        double u = precision.roundingError();
        for (long[] sizes : new long[][] {{1, 1, 1}, {5, 3, 7}, {13, 129, 65}, {33, 700, 41}}) {
            NDArray x = TestArrays.leaf(manager.randomNormal(new Shape(sizes[0], sizes[1])));
            NDArray w = TestArrays.leaf(manager.randomNormal(new Shape(sizes[2], sizes[1])));
            NDArray b = TestArrays.leaf(manager.randomNormal(new Shape(sizes[2])));
            NDArray above = manager.randomNormal(new Shape(sizes[0], sizes[2]));
            NDArray y = new LinearProduct(precision).of(x, w, b);
            Assert.assertEquals(y.getDataType(), DataType.FLOAT32);
            Autograd.backward(y, above);
            NDArray wt = w.stopGradient().transpose();
            check(y.stopGradient(), x.stopGradient(), wt, b.stopGradient(), u);
            check(Autograd.gradient(x), above, w.stopGradient(), null, u);
            check(Autograd.gradient(w), above.transpose(), x.stopGradient(), null, u);
            NDArray sums = TestArrays.wide(above).sum(new int[] {0});
            double off = TestArrays.difference(Autograd.gradient(b), sums).max().getDouble();
            Assert.assertTrue(off <= 1e-6 * sizes[0] * 5, "bias " + off);
        }
    }

    /** |actual - (l r + b)| <= u |l r| + (1 + u)(2u + u^2 + k 2^-23) |l| |r|, and b in float32. */
    private static void check(NDArray actual, NDArray left, NDArray right, NDArray bias, double u) {
        NDArray l = TestArrays.wide(left);
        NDArray r = TestArrays.wide(right);
        NDArray exact = l.matMul(r);
        double sums = (1 + u) * (2 * u + u * u + l.getShape().get(1) * 0x1p-23);
        NDArray bound = exact.abs().mul(u).add(l.abs().matMul(r.abs()).mul(sums));
        if (bias != null) {
            exact = exact.add(TestArrays.wide(bias));
            bound = bound.add(exact.abs().add(bound).mul(0x1p-23));
        }
        NDArray over = TestArrays.difference(actual, exact).sub(bound);
        Assert.assertTrue(over.max().getDouble() <= 0, "over the bound by " + over.max());
    }

    /**
     * Of numbers that bfloat16 has, with sums that float32 has, nothing but the result is rounded.
     */
    @Test
    public void sumsAreFloat32() {
        NeededArithmetic.bfloat16();
        // 256 + 1 + ... + 1 is 512: sums of 8 bits would stay at 256
        float[] values = new float[257];
        Arrays.fill(values, 1);
        values[0] = 256;
        NDArray x = manager.create(values, new Shape(1, 257));
        NDArray y = new LinearProduct(Precision.BFLOAT16).of(x, x.onesLike(), null);
        Assert.assertEquals(y.getFloat(0, 0), 512f);
    }

    @Test
    public void float32HasTheBitsOfTheLinearLayer() {
        NDArray x = manager.randomNormal(new Shape(4, 5, 33));
        NDArray w = manager.randomNormal(new Shape(17, 33));
        NDArray b = manager.randomNormal(new Shape(17));
        TestArrays.assertSame(
                new LinearProduct(Precision.FLOAT32).of(x, w, b),
                Linear.linear(x, w, b).singletonOrThrow(),
                "y");
    }

    @Test
    public void whatLayersDoNotHaveIsRefused() {
        Refusals.throwsArgument(() -> new LinearProduct(Precision.TF32), "tf32", "BFLOAT16");
        NDArray x = manager.create(new float[] {1}, new Shape(1, 1)).toDevice(Device.cpu(), false);
        Refusals.throwsArgument(
                () -> new LinearProduct(Precision.FLOAT16).of(x, x, null),
                "float16 is arithmetic of GPUs");
        NeededArithmetic.bfloat16();
        NDArray w = manager.ones(new Shape(1, 1), DataType.FLOAT16);
        Refusals.throwsArgument(
                () -> new LinearProduct(Precision.BFLOAT16).of(x, w, null),
                "the weight is float16 and the input float32");
    }
}
