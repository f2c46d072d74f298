package io.djltp.internal.decode;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * A weight [out, in] of a linear layer that is not trained, in the form in which a kernel of
 * libtorch multiplies it: \(y = x W^T + b\) of one row or many, of float32 in and out.
 *
 * <p>Of each type there is a plain form too, which any processor has: the weight as it is, widened
 * to float32 in blocks that stay in the cache. {@link #getKernel} says which one it is.
 */
@SuppressWarnings("try") // a scope is used by being open
public abstract class PackedWeight implements AutoCloseable {

    /** How the numbers of a weight are held. Sums are float32 in all of them. */
    public enum Type {

        /** As they are. */
        FLOAT32,

        /** Rounded to 8 bits of significand. */
        BFLOAT16,

        /** Rounded to 11 bits of significand, and at most 65,504. */
        FLOAT16,

        /** Rounded to 8 bits, with a scale for each row; the rows that are multiplied have 14. */
        INT8,

        /** Rounded to 4 bits, with a scale and an offset of 2 bytes for each 32 of a row. */
        INT4;

        /**
         * Returns the memory of a weight, for which the kernels of small types round its sizes up.
         *
         * @param outputs the features of a result
         * @param inputs the features of a row
         * @return the bytes of the numbers, and of their scales
         */
        public long getBytes(long outputs, long inputs) {
            return switch (this) {
                case FLOAT32 -> 4 * outputs * inputs;
                case BFLOAT16 -> 2 * outputs * inputs;
                case FLOAT16 -> 2 * whole(outputs, 16) * whole(inputs, 512);
                // a scale, a zero point and a sum for each output
                case INT8 -> whole(outputs, 8) * whole(inputs, 512) + 12 * outputs;
                case INT4 -> whole(outputs, 32) * whole(inputs, 32) / 32 * (16 + 4);
            };
        }

        private static long whole(long size, int block) {
            return (size + block - 1) / block * block;
        }

        String word() {
            return name().toLowerCase(Locale.ROOT);
        }

        ScalarType scalarType() {
            return switch (this) {
                case FLOAT32 -> ScalarType.Float;
                case BFLOAT16 -> ScalarType.BFloat16;
                case FLOAT16 -> ScalarType.Half;
                case INT8 -> ScalarType.Char;
                case INT4 -> ScalarType.Byte;
            };
        }
    }

    private final DecodeKernels kernel;
    private final Type type;
    private final int outputs;
    private final int inputs;
    private final RowBuffer rows;
    private final Tensor one; // a row of the buffer
    private final float @Nullable [] bias;
    private final List<Pointer> kept = new ArrayList<>();

    /** What is packed: the weight is float32 [out, in], and contiguous. */
    record Given(
            DecodeKernels kernel,
            Type type,
            Tensor weight,
            float @Nullable [] bias,
            RowBuffer rows) {}

    PackedWeight(Given given) {
        kernel = given.kernel();
        type = given.type();
        outputs = Math.toIntExact(given.weight().size(0));
        inputs = Math.toIntExact(given.weight().size(1));
        bias = given.bias();
        rows = given.rows();
        one = keep(rows.view(rowsOf(1), columnsOf(inputs)));
    }

    /**
     * Packs a weight for the best kernel that the processor has.
     *
     * @param weight the weight, [out, in], float32, on the CPU; not used afterwards
     * @param bias the bias, [out], or {@code null}
     * @param type how its numbers are held
     * @param rows where rows go in, with room for {@link #roomFor} of each product. Weights that
     *     are not used at a time may share it
     * @return the packed weight
     * @throws IllegalArgumentException if the type cannot hold a number
     */
    public static PackedWeight of(
            NDArray weight, @Nullable NDArray bias, Type type, RowBuffer rows) {
        return of(weight, bias, type, rows, DecodeKernels.find(type));
    }

    /** Packs a weight for one kernel. */
    static PackedWeight of(
            NDArray weight,
            @Nullable NDArray bias,
            Type type,
            RowBuffer rows,
            DecodeKernels kernel) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor w = TensorView.of(weight).tensor();
            float[] b = null;
            if (bias != null) {
                b = new float[Math.toIntExact(bias.size())];
                RowBuffer.read(TensorView.of(bias).tensor().contiguous(), b, b.length);
            }
            checkRange(w, type);
            return kernel.pack(type, w.contiguous(), b, rows);
        }
    }

    private static void checkRange(Tensor weight, Type type) {
        if (type == Type.FLOAT32 || weight.numel() == 0) {
            return;
        }
        double largest = HostReads.number(weight.abs().max());
        double most = type == Type.FLOAT16 ? 65504 : Float.MAX_VALUE;
        if (!(largest <= most)) {
            throw Errors.argument(
                    "A weight has a number of %s, and %s holds up to %s: use bfloat16 or float32"
                            + " weights",
                    largest, type.word(), most);
        }
    }

    /**
     * Returns the name of the kernel that weights of a type get here.
     *
     * @param type the type
     * @return the library and the arithmetic, or that it is the plain form
     */
    public static String kernelOf(Type type) {
        return DecodeKernels.find(type).describe(type);
    }

    /**
     * Returns the room that a product needs in its {@link RowBuffer}.
     *
     * @param rows the most rows that are multiplied at once
     * @param inputs the features of a row
     * @return the number of floats
     */
    public static long roomFor(long rows, long inputs) {
        return rows * Math.max(2 * inputs, 32); // 8 bits take rows apart, 4 fill them up
    }

    /**
     * Returns the kernel.
     *
     * @return the library and the arithmetic, or that it is the plain form
     */
    public final String getKernel() {
        return kernel.describe(type);
    }

    /** Returns the memory of the weight in bytes. */
    abstract long bytes();

    /** Multiplies rows of the buffer, [count, out], to be freed by the scope that is open. */
    abstract Tensor product(Tensor x);

    /** Puts rows into the buffer. */
    void put(RowBuffer to, float[] x, int count) {
        to.memory().put(0, x, 0, count * inputs);
    }

    /** Takes the rows of a product. */
    void take(RowBuffer from, Tensor product, float[] y, int count) {
        RowBuffer.read(product, y, count * outputs);
    }

    /** Returns how many rows a kernel multiplies instead of some. */
    int rowsOf(int count) {
        return count;
    }

    /** Returns how many numbers a row has for a kernel. */
    int columnsOf(int inputs) {
        return inputs;
    }

    /**
     * Multiplies rows.
     *
     * @param x the rows, [count, in]
     * @param count how many
     * @param y where the results go, [count, out]
     */
    public final void multiply(float[] x, int count, float[] y) {
        put(rows, x, count);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor in = count == 1 ? one : rows.view(rowsOf(count), columnsOf(inputs));
            take(rows, product(in), y, count);
        }
        if (bias != null) {
            for (int i = 0; i < count; i++) {
                int at = i * outputs;
                for (int j = 0; j < outputs; j++) {
                    y[at + j] += bias[j];
                }
            }
        }
    }

    /**
     * Returns how the numbers are held.
     *
     * @return the type
     */
    public final Type getType() {
        return type;
    }

    /**
     * Returns the features of a result.
     *
     * @return the number of outputs
     */
    public final int getOutputs() {
        return outputs;
    }

    /**
     * Returns the features of a row.
     *
     * @return the number of inputs
     */
    public final int getInputs() {
        return inputs;
    }

    /**
     * Returns the memory that it takes.
     *
     * @return the bytes of the weight, its scales and its bias
     */
    public final long getBytes() {
        return bytes() + (bias == null ? 0 : 4L * bias.length);
    }

    /** Keeps memory of the scope that is open, until the weight is closed. */
    final <P extends Pointer> P keep(P memory) {
        kept.add(memory);
        return memory.retainReference();
    }

    /** Frees the weight. */
    @Override
    public final void close() {
        kept.forEach(Pointer::close);
    }
}
