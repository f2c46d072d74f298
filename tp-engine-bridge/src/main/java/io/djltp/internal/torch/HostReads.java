package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.concurrent.atomic.LongAdder;

/**
 * Numbers that the host reads from a device. On a GPU the reading thread waits until the device has
 * computed everything that was queued before, and the device then waits for the next operation. All
 * reads of a step go through this class, which counts them; a test of the architecture holds that.
 * Copies from ordinary memory to the device wait too, and are not counted.
 */
public final class HostReads {

    private static final LongAdder COUNT = new LongAdder();

    private HostReads() {}

    /**
     * Returns how often numbers were read in this process.
     *
     * @return the count, of all ranks of the process
     */
    public static long getCount() {
        return COUNT.sum();
    }

    /**
     * Reads a number.
     *
     * @param scalar a tensor of one element, of any numeric type
     * @return its value
     */
    public static double number(Tensor scalar) {
        COUNT.increment();
        return scalar.item_double();
    }

    /**
     * Reads all numbers of a tensor.
     *
     * @param tensor a tensor of any numeric type
     * @return its elements
     */
    public static double[] doubles(Tensor tensor) {
        COUNT.increment();
        double[] numbers = new double[Math.toIntExact(tensor.numel())];
        if (numbers.length == 0) {
            return numbers; // there is no memory to read
        }
        boolean there = tensor.scalar_type().intern() == ScalarType.Double && !tensor.is_cuda();
        Tensor own = there ? tensor : tensor.to(ScalarType.Double).cpu();
        own.contiguous().data_ptr_double().get(numbers);
        return numbers;
    }

    /**
     * Reads a number.
     *
     * @param scalar an array of one element, of float32 or float64
     * @return its value
     */
    public static double number(NDArray scalar) {
        COUNT.increment();
        return scalar.getDataType() == DataType.FLOAT64 ? scalar.getDouble() : scalar.getFloat();
    }

    /**
     * Reads an array of int64.
     *
     * @param array the array
     * @return its elements
     */
    public static long[] longs(NDArray array) {
        COUNT.increment();
        return array.toLongArray();
    }

    /**
     * Reads an array of int32.
     *
     * @param array the array
     * @return its elements
     */
    public static int[] ints(NDArray array) {
        COUNT.increment();
        return array.toIntArray();
    }

    /**
     * Reads an array of float32.
     *
     * @param array the array
     * @return its elements
     */
    public static float[] floats(NDArray array) {
        COUNT.increment();
        return array.toFloatArray();
    }

    /**
     * Reads an array of float64.
     *
     * @param array the array
     * @return its elements
     */
    public static double[] doubles(NDArray array) {
        COUNT.increment();
        return array.toDoubleArray();
    }
}
