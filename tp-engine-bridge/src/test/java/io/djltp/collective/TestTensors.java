package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;

import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/**
 * Reproducible tensors of all types, and what collectives make of them.
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
    static Tensor random(DataType type, long seed, long length) {
        if (length == 0) {
            return zeros(type, 0);
        }
        SplittableRandom random = new SplittableRandom(seed);
        if (type.isInteger()) {
            // up to 2^59, far beyond what a double holds; eight of them do not overflow
            int shift = type == DataType.INT64 ? 4 : 36;
            long[] values = random.longs(length).map(value -> value >> shift).toArray();
            return Tensor.create(values, length).to(scalarType(type));
        }
        double[] values = new double[(int) length];
        Arrays.setAll(values, i -> (random.nextDouble() - 0.5) * (1 << random.nextInt(9)));
        return Tensor.create(values, length).to(scalarType(type));
    }

    /** Returns a tensor of zeros. */
    static Tensor zeros(DataType type, long... shape) {
        return full(type, 0, shape);
    }

    /** Returns a tensor full of one value. */
    static Tensor full(DataType type, double value, long... shape) {
        return torch.full(shape, new Scalar(value), new TensorOptions(scalarType(type)));
    }

    /** Returns the reduction, taken in the order of the tensors; 16-bit types are rounded once. */
    static Tensor reduce(List<Tensor> tensors, ReduceOp op) {
        DataType type = TensorView.of(tensors.get(0)).getDataType();
        ScalarType wide = type.isInteger() ? ScalarType.Long : ScalarType.Double;
        Tensor result = tensors.get(0).to(wide);
        for (Tensor tensor : tensors.subList(1, tensors.size())) {
            Tensor next = tensor.to(wide);
            result =
                    switch (op) {
                        case SUM -> result.add(next);
                        case MAX -> torch.maximum(result, next);
                        case MIN -> torch.minimum(result, next);
                    };
            if (!type.isInteger() && type != DataType.FLOAT64) {
                // a double holds the sum of two floats well enough to round it to a float sum
                result = result.to(ScalarType.Float).to(wide);
            }
        }
        return result.to(scalarType(type));
    }

    /** Returns tensors one after another. */
    static Tensor concat(List<Tensor> tensors) {
        return torch.cat(new TensorVector(tensors.toArray(Tensor[]::new)), 0);
    }

    /** Returns the elements. */
    static double[] doubles(Tensor tensor) {
        return HostReads.doubles(tensor);
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
        Assert.assertEquals(a.toString(), b.toString(), what);
        byte[] bits = bits(actual);
        byte[] others = bits(expected);
        if (!Arrays.equals(bits, others)) {
            int element = Arrays.mismatch(bits, others) / (int) actual.element_size();
            double found = doubles(actual.view(-1))[element];
            double wanted = doubles(expected.view(-1))[element];
            Assert.fail(
                    "%s: element %d of %s is %s instead of %s"
                            .formatted(what, element, a, found, wanted));
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
