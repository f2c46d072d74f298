package io.djltp.internal.decode;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

import java.nio.FloatBuffer;

/** Memory of libtorch through which rows of float32 go to and from its operations. */
@SuppressWarnings("try") // a scope is used by being open
public final class RowBuffer implements AutoCloseable {

    private final Tensor tensor; // [floats]
    private final FloatBuffer memory;
    private final long address;
    private float[] scratch = {};

    /**
     * Allocates memory.
     *
     * @param floats how many numbers it holds
     * @throws IllegalArgumentException if they are more than a buffer of Java holds
     */
    public RowBuffer(long floats) {
        tensor = allocate(floats);
        memory = memoryOf(tensor);
        address = tensor.data_ptr().address();
    }

    /** Allocates a tensor of float32, of any contents. */
    static Tensor allocate(long... shape) {
        long floats = 1;
        for (long length : shape) {
            floats = Math.multiplyExact(floats, length);
        }
        Errors.check(
                floats <= Integer.MAX_VALUE - 8,
                "%s numbers are more than a buffer holds, which are 2147483639: use more ranks,"
                        + " or fewer rows",
                floats);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return torch.empty(shape).retainReference();
        }
    }

    /** Returns the memory of a contiguous tensor of float32, valid as long as the tensor. */
    static FloatBuffer memoryOf(Tensor tensor) {
        return new FloatPointer(tensor.data_ptr()).capacity(tensor.numel()).asBuffer();
    }

    /** Copies the numbers of a contiguous tensor of float32. */
    static void read(Tensor tensor, float[] to, int count) {
        new FloatPointer(tensor.data_ptr()).get(to, 0, count);
    }

    /** Returns the memory. */
    FloatBuffer memory() {
        return memory;
    }

    /** Returns where the memory is. */
    long address() {
        return address;
    }

    /** Returns the first numbers as an array, to be closed by the caller. */
    Tensor view(long rows, long columns) {
        try (Tensor part = tensor.narrow(0, 0, rows * columns)) {
            return part.view(rows, columns);
        }
    }

    /** Returns how many numbers there is room for. */
    int capacity() {
        return memory.capacity();
    }

    /** Returns an array of so many numbers or more, for the product that uses the memory now. */
    float[] scratch(int count) {
        if (scratch.length < count) {
            scratch = new float[count];
        }
        return scratch;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        tensor.close();
    }
}
