package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.pytorch.Device;
import org.bytedeco.pytorch.DoubleArrayRef;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DeviceType;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.concurrent.atomic.LongAdder;

/**
 * Numbers that go from a device to the host, and from the host to a device. To read from a GPU, the
 * host waits until the GPU has computed everything that was queued before, and the GPU then waits
 * for its next operation. Uploads are copies of pinned memory, for which nobody waits; those of
 * ordinary memory would wait, too.
 *
 * <p>All reads and uploads of a step go through this class, which counts them; a test of the
 * architecture holds that.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class HostReads {

    private static final LongAdder COUNT = new LongAdder();
    private static final LongAdder UPLOADS = new LongAdder();

    private HostReads() {}

    /**
     * Returns how often numbers were brought to a device in this process.
     *
     * @return the count, of all ranks of the process
     */
    public static long getUploads() {
        return UPLOADS.sum();
    }

    /**
     * Brings numbers to a device.
     *
     * @param device the device
     * @param numbers the numbers
     * @return the numbers there, int64
     */
    public static Tensor toDevice(Device device, long... numbers) {
        return toDevice(device, torch.tensor(numbers));
    }

    /**
     * Brings numbers to a device.
     *
     * @param device the device
     * @param numbers the numbers
     * @return the numbers there, int16
     */
    public static Tensor toDevice(Device device, short... numbers) {
        return toDevice(device, torch.tensor(numbers));
    }

    /**
     * Brings numbers to a device.
     *
     * @param device the device
     * @param numbers the numbers
     * @return the numbers there, float32
     */
    public static Tensor toDevice(Device device, float... numbers) {
        return toDevice(device, torch.tensor(numbers, new TensorOptions(ScalarType.Float)));
    }

    /**
     * Brings numbers to a device.
     *
     * @param device the device
     * @param numbers the numbers
     * @return the numbers there, float64
     */
    public static Tensor toDevice(Device device, double... numbers) {
        try (DoublePointer memory = new DoublePointer(numbers);
                DoubleArrayRef array = new DoubleArrayRef(memory, numbers.length)) {
            return toDevice(device, torch.tensor(array, new TensorOptions(ScalarType.Double)));
        }
    }

    private static Tensor toDevice(Device device, Tensor ofHost) {
        UPLOADS.increment();
        return device.is_cuda()
                ? ofHost.pin_memory()
                        .to(device, ofHost.scalar_type(), true, false, new MemoryFormatOptional())
                : ofHost;
    }

    /**
     * Brings an array to a device.
     *
     * @param array the array
     * @param device the device
     * @return the array there, attached to its manager; the array itself if it is there
     */
    public static NDArray toDevice(NDArray array, ai.djl.Device device) {
        if (array.getDevice().equals(device)) {
            return array;
        }
        if (array.getDevice().isGpu()) {
            COUNT.increment();
            return array.toDevice(device, false);
        }
        try (TorchScope scope = TorchScope.withoutGraph();
                Device there = new Device(DeviceType.CUDA, (byte) device.getDeviceId())) {
            Tensor moved = toDevice(there, TensorView.of(array).tensor());
            return TensorView.toArray(moved, array.getManager());
        }
    }

    /**
     * Returns a number if the host need not wait for it.
     *
     * @param scalar a tensor of one element, of any numeric type
     * @return its value, or NaN if it lies on a GPU
     */
    public static double known(Tensor scalar) {
        return scalar.is_cuda() ? Double.NaN : scalar.item_double();
    }

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
     * @param scalar a view of one element, of any numeric type
     * @return its value
     */
    public static double number(TensorView scalar) {
        return number(scalar.tensor());
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
