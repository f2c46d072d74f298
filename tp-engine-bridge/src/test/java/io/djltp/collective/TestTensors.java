package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.Stream;

/**
 * Reproducible tensors of all types, and what collectives make of them, worked out one by one.
 *
 * <p>They are tensors of the preset: DJL 0.35 ends the process when asked for a bfloat16 array.
 * They live as long as the scope that the caller has opened, as {@link RankThreads} does.
 */
final class TestTensors {

    /** The types that collectives take. */
    static final DataType[] TYPES = {
        DataType.FLOAT32,
        DataType.FLOAT64,
        DataType.FLOAT16,
        DataType.BFLOAT16,
        DataType.INT32,
        DataType.INT64
    };

    static {
        LibTorch.load(); // before anything else uses the preset
    }

    private TestTensors() {}

    /** Returns what a rank puts in: of all magnitudes, so that the order of a sum shows. */
    static Tensor random(DataType type, long seed, long... shape) {
        int length = 1;
        for (long dimension : shape) {
            length *= (int) dimension;
        }
        SplittableRandom random = new SplittableRandom(seed);
        if (type.isInteger()) {
            long[] values = new long[length];
            for (int i = 0; i < length; i++) {
                // up to 2^59, far beyond what a double holds; eight of them do not overflow
                values[i] = random.nextLong() >> (type == DataType.INT64 ? 4 : 36);
            }
            return longs(type, values, shape);
        }
        double[] values = new double[length];
        for (int i = 0; i < length; i++) {
            values[i] = (random.nextDouble() - 0.5) * (1 << random.nextInt(9));
        }
        return doubles(type, values, shape);
    }

    /** Returns a tensor of these values, each rounded to the type. */
    static Tensor doubles(DataType type, double[] values, long... shape) {
        if (values.length == 0) {
            return zeros(type, shape);
        }
        return Tensor.create(values, shape).to(scalarType(type));
    }

    private static Tensor longs(DataType type, long[] values, long... shape) {
        if (values.length == 0) {
            return zeros(type, shape);
        }
        return Tensor.create(values, shape).to(scalarType(type));
    }

    /** Returns a tensor of zeros. */
    static Tensor zeros(DataType type, long... shape) {
        return full(type, 0, shape);
    }

    /** Returns a tensor full of one value. */
    static Tensor full(DataType type, double value, long... shape) {
        return torch.full(shape, new Scalar(value), new TensorOptions(scalarType(type)));
    }

    /** Returns the reduction, taken by Java in the order of the tensors and rounded once. */
    static Tensor reduce(List<Tensor> tensors, ReduceOp op) {
        Tensor first = tensors.get(0);
        DataType type = TensorView.of(first).getDataType();
        if (type.isInteger()) {
            long[] result = longs(first);
            for (Tensor tensor : tensors.subList(1, tensors.size())) {
                long[] next = longs(tensor);
                for (int i = 0; i < result.length; i++) {
                    result[i] = reduce(result[i], next[i], op);
                }
            }
            return longs(type, result, first.shape());
        }
        double[] result = doubles(first);
        for (Tensor tensor : tensors.subList(1, tensors.size())) {
            double[] next = doubles(tensor);
            for (int i = 0; i < result.length; i++) {
                double sum = reduce(result[i], next[i], op);
                // a double holds the sum of two floats well enough to round it to a float sum
                result[i] = type == DataType.FLOAT64 ? sum : (float) sum;
            }
        }
        // here the 16-bit types are rounded, once
        return doubles(type, result, first.shape());
    }

    private static long reduce(long a, long b, ReduceOp op) {
        return op == ReduceOp.SUM ? a + b : op == ReduceOp.MAX ? Math.max(a, b) : Math.min(a, b);
    }

    private static double reduce(double a, double b, ReduceOp op) {
        return op == ReduceOp.SUM ? a + b : op == ReduceOp.MAX ? Math.max(a, b) : Math.min(a, b);
    }

    /** Returns tensors one after another. */
    static Tensor concat(List<Tensor> tensors) {
        DataType type = TensorView.of(tensors.get(0)).getDataType();
        Stream<Tensor> stream = tensors.stream();
        if (type.isInteger()) {
            long[] all = stream.map(TestTensors::longs).flatMapToLong(Arrays::stream).toArray();
            return longs(type, all, all.length);
        }
        double[] all = stream.map(TestTensors::doubles).flatMapToDouble(Arrays::stream).toArray();
        return doubles(type, all, all.length);
    }

    /** Returns the elements, exactly. */
    static long[] longs(Tensor tensor) {
        long[] values = new long[(int) tensor.numel()];
        if (values.length > 0) {
            tensor.to(ScalarType.Long).contiguous().<java.nio.LongBuffer>createBuffer().get(values);
        }
        return values;
    }

    /** Returns the elements, exactly. */
    static double[] doubles(Tensor tensor) {
        double[] values = new double[(int) tensor.numel()];
        if (values.length > 0) {
            tensor.to(ScalarType.Double)
                    .contiguous()
                    .<java.nio.DoubleBuffer>createBuffer()
                    .get(values);
        }
        return values;
    }

    /** Returns a copy of the elements' bits. */
    static byte[] bits(Tensor tensor) {
        byte[] bits = new byte[(int) tensor.nbytes()];
        if (bits.length > 0) {
            try (Pointer data = tensor.data_ptr()) {
                new BytePointer(data).capacity(bits.length).get(bits);
            }
        }
        return bits;
    }

    /** Asserts that two tensors are the same: type, shape and every bit. */
    static void assertSame(Tensor actual, Tensor expected, String what) {
        TensorView a = TensorView.of(actual);
        TensorView b = TensorView.of(expected);
        Assert.assertEquals(a.getDataType(), b.getDataType(), what);
        Assert.assertEquals(a.getShape(), b.getShape(), what);
        byte[] bits = bits(actual);
        byte[] others = bits(expected);
        if (!Arrays.equals(bits, others)) {
            int element = Arrays.mismatch(bits, others) / (int) actual.element_size();
            Assert.fail(
                    String.format(
                            "%s: element %d of %s is %s instead of %s",
                            what,
                            element,
                            a,
                            doubles(actual)[element],
                            doubles(expected)[element]));
        }
    }

    private static ScalarType scalarType(DataType type) {
        return switch (type) {
            case FLOAT32 -> ScalarType.Float;
            case FLOAT64 -> ScalarType.Double;
            case FLOAT16 -> ScalarType.Half;
            case BFLOAT16 -> ScalarType.BFloat16;
            case INT32 -> ScalarType.Int;
            case INT64 -> ScalarType.Long;
            default -> throw new AssertionError(type);
        };
    }
}
