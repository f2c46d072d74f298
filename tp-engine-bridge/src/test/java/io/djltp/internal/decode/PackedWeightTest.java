package io.djltp.internal.decode;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.decode.PackedWeight.Type;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.pytorch.global.torch;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Random;
import java.util.Set;

public class PackedWeightTest {

    @DataProvider
    public Object[][] types() {
        return new Object[][] {
            // type, relative error of products whose weight is rounded to it
            {Type.FLOAT32, 2e-6},
            {Type.FLOAT16, 5e-4},
            {Type.BFLOAT16, 6e-3},
            {Type.INT8, 1e-2},
            {Type.INT4, 0.1}
        };
    }

    /** Products of one row and of many are those of float64, by the kernel and in plain form. */
    @Test(dataProvider = "types")
    public void multipliesAsFloat64(Type type, double limit) {
        int[][] sizes = {{1, 1}, {3, 5}, {37, 53}, {64, 128}, {300, 257}, {1025, 64}};
        for (int threads = 1; threads <= 2; threads++) {
            withThreads(
                    threads,
                    () -> {
                        for (int[] size : sizes) {
                            for (int count : new int[] {1, 2, 7, 33, 70}) {
                                check(type, size[0], size[1], count, false, limit);
                                check(type, size[0], size[1], count, true, limit);
                            }
                        }
                    });
        }
    }

    private static void withThreads(int threads, Runnable work) {
        LibTorch.load();
        int before = torch.get_num_threads();
        torch.set_num_threads(threads);
        try {
            work.run();
        } finally {
            torch.set_num_threads(before);
        }
    }

    private static void check(Type type, int out, int in, int count, boolean plain, double limit) {
        Random random = new Random(7L * out + in + count);
        float[] w = floats(random, out * in);
        float[] b = count % 2 == 0 ? null : floats(random, out);
        check(type, w, b, floats(random, count * in), out, in, count, plain, limit);
    }

    private static void check(
            Type type,
            float[] w,
            float[] b,
            float[] x,
            int out,
            int in,
            int count,
            boolean plain,
            double limit) {
        float[] y = new float[count * out];
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                RowBuffer rows = new RowBuffer(PackedWeight.roomFor(count, in))) {
            NDArray weight = manager.create(w, new Shape(out, in));
            NDArray bias = b == null ? null : manager.create(b);
            try (PackedWeight packed =
                    plain
                            ? PackedWeight.of(weight, bias, type, rows, DecodeKernels.PLAIN)
                            : PackedWeight.of(weight, bias, type, rows)) {
                weight.muli(0); // nobody's any more
                Assert.assertEquals(packed.getOutputs(), out);
                Assert.assertEquals(packed.getInputs(), in);
                Assert.assertEquals(packed.getType(), type);
                long bytes = type.getBytes(out, in) + (b == null ? 0 : 4L * out);
                Assert.assertTrue(plain || packed.getBytes() >= bytes, "" + packed.getBytes());
                Assert.assertTrue(packed.getBytes() <= 2 * bytes, "" + packed.getBytes());
                for (int repeat = 0; repeat < 2; repeat++) {
                    packed.multiply(x, count, y);
                    double error = 0;
                    double size = 0;
                    for (int i = 0; i < count; i++) {
                        for (int j = 0; j < out; j++) {
                            double exact = bias == null ? 0 : b[j];
                            for (int k = 0; k < in; k++) {
                                exact += (double) x[i * in + k] * w[j * in + k];
                            }
                            error += (y[i * out + j] - exact) * (y[i * out + j] - exact);
                            size += exact * exact;
                        }
                    }
                    double relative = Math.sqrt(error / size);
                    String what = packed.getKernel() + " " + out + "x" + in + " of " + count;
                    Assert.assertTrue(relative <= limit, what + ": " + relative);
                }
            }
        }
    }

    static float[] floats(Random random, int count) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (float) random.nextGaussian();
        }
        return numbers;
    }

    /** Numbers that 4 bits hold are multiplied up to the rounding of rows to bfloat16. */
    @Test
    public void fourBitsHoldSixteenNumbersOfAGroup() {
        for (int count : new int[] {1, 40, 70}) {
            for (boolean plain : new boolean[] {false, true}) {
                Random random = new Random(count);
                float[] w = new float[70 * 96];
                for (int i = 0; i < w.length; i++) {
                    int step = i % 32 < 2 ? 15 * (i % 2) : random.nextInt(16);
                    w[i] = (i / 32 % 5 + 1) * 0.25f * (step - 8);
                }
                float[] x = floats(random, count * 96);
                double limit = plain || count > 16 ? 1e-6 : 4e-3;
                check(Type.INT4, w, null, x, 70, 96, count, plain, limit);
            }
        }
    }

    /** Rows of zeros, of numbers that are not, and a row among larger ones; few rows or many. */
    @Test
    public void rowsOfAnySizeKeepTheirDigits() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                RowBuffer rows = new RowBuffer(PackedWeight.roomFor(40, 8))) {
            NDArray weight = manager.arange(24f).reshape(3, 8).subi(12);
            try (PackedWeight packed = PackedWeight.of(weight, null, Type.INT8, rows)) {
                for (int count : new int[] {4, 40}) {
                    float[] x = new float[8 * count];
                    x[8] = 1e-20f;
                    x[16] = 1e20f;
                    x[24] = Float.NaN;
                    float[] y = new float[3 * count];
                    packed.multiply(x, count, y);
                    for (int j = 0; j < 3; j++) {
                        Assert.assertEquals(y[j], 0f);
                        Assert.assertEquals(y[3 + j], (8 * j - 12) * 1e-20f, 1e-21f);
                        Assert.assertEquals(y[6 + j], (8 * j - 12) * 1e20f, 1e19f);
                        Assert.assertTrue(Float.isNaN(y[9 + j]));
                    }
                }
            }
        }
    }

    /** In 8 bits the result of a row has the same bits alone and among many. */
    @Test
    public void rowsDoNotDependOnOthers() {
        int in = 257;
        int out = 100;
        float[] x = floats(new Random(3), 50 * in);
        float[] all = new float[50 * out];
        float[] one = new float[out];
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                RowBuffer rows = new RowBuffer(PackedWeight.roomFor(50, in))) {
            NDArray weight = manager.create(floats(new Random(4), out * in), new Shape(out, in));
            try (PackedWeight packed = PackedWeight.of(weight, null, Type.INT8, rows)) {
                packed.multiply(x, 50, all);
                for (int i = 0; i < 50; i++) {
                    packed.multiply(Arrays.copyOfRange(x, i * in, (i + 1) * in), 1, one);
                    Assert.assertEquals(one, Arrays.copyOfRange(all, i * out, (i + 1) * out));
                }
            }
        }
    }

    @Test(
            expectedExceptions = IllegalArgumentException.class,
            expectedExceptionsMessageRegExp = ".*70000.0, and float16 holds up to 65504.*")
    public void whatFloat16CannotHoldThrows() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                RowBuffer rows = new RowBuffer(64)) {
            PackedWeight.of(manager.full(new Shape(2, 8), 70000f), null, Type.FLOAT16, rows);
        }
    }

    /** On the platform that is tested, no type is slow in silence. */
    @Test
    public void kernelsHaveNames() {
        if (!"amd64".equals(System.getProperty("os.arch"))) {
            throw new SkipException("FBGEMM is a library of x86-64");
        }
        for (int threads = 1; threads < 3; threads++) {
            String name = (threads == 1 ? "oneDNN" : "XNNPACK") + ", float32";
            withThreads(
                    threads, () -> Assert.assertEquals(PackedWeight.kernelOf(Type.FLOAT32), name));
        }
        Assert.assertTrue(PackedWeight.kernelOf(Type.FLOAT16).startsWith("FBGEMM"));
        Assert.assertTrue(PackedWeight.kernelOf(Type.INT8).startsWith("FBGEMM"));
        Assert.assertTrue(PackedWeight.kernelOf(Type.INT4).startsWith("libtorch, int4 weights in"));
        String widened = "libtorch, bfloat16 widened to float32";
        Assert.assertTrue(
                Set.of("oneDNN, bfloat16 weights and rows, float32 sums", widened)
                        .contains(PackedWeight.kernelOf(Type.BFLOAT16)));
    }
}
