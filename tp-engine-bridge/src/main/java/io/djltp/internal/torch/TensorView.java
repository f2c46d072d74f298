package io.djltp.internal.torch;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;

import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.javacpp.Pointer;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorBase;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
import java.util.Locale;

/**
 * A view of a DJL array as the {@code at::Tensor} that it is: no copy, on any device.
 *
 * <p>The view owns nothing and must not be used after its array is closed.
 *
 * @param tensor the tensor. For the bridge and the collective backends only: nothing else may
 *     depend on the preset
 */
public record TensorView(Tensor tensor) {

    /**
     * Returns a view of an array.
     *
     * @param array an array of DJL's PyTorch engine
     * @return the view
     * @throws IllegalArgumentException if the array belongs to another engine
     */
    public static TensorView of(NDArray array) {
        NDArray own = DelegatedArray.unwrap(array);
        if (!(own instanceof PtNDArray)) {
            throw Errors.argument(
                    "An array of DJL's PyTorch engine is needed, but this is a %s",
                    array.getClass().getName());
        }
        LibTorch.load();
        long handle = ((PtNDArray) own).getHandle();
        return new TensorView(new Tensor(new BorrowedPointer(handle)));
    }

    /**
     * Returns a view of a tensor of the preset.
     *
     * @param tensor the tensor
     * @return the view
     */
    public static TensorView of(TensorBase tensor) {
        Tensor view = tensor instanceof Tensor ? (Tensor) tensor : new Tensor((Pointer) tensor);
        return new TensorView(view);
    }

    /**
     * Hands a tensor of the preset to DJL: the array has a handle of its own to the same memory and
     * the same place in the autograd graph.
     *
     * @param tensor the tensor, which stays the caller's to close
     * @param manager the manager that the array is attached to
     * @return the array
     */
    public static NDArray toArray(Tensor tensor, NDManager manager) {
        LibTorch.load(); // may be the first call of all
        Tensor owned = new Tensor(tensor);
        long handle = owned.address();
        owned.retainReference(); // not to be freed with the scope of the caller ...
        owned.deallocate(false); // ... nor by the collector: from here on it is DJL that deletes it
        NDArray array = new PtNDArray((PtNDManager) DelegatedArray.unwrap(manager), handle);
        return manager instanceof DelegatedArray.Manager placed ? placed.wrap(array) : array;
    }

    /**
     * Returns whether a gradient will be computed for this tensor, leaf or not. ({@link
     * NDArray#hasGradient()} is false for every tensor that is not a leaf.)
     *
     * @return whether the tensor requires a gradient
     */
    public boolean requiresGradient() {
        return tensor.requires_grad();
    }

    /**
     * Returns whether the elements lie in memory in row-major order without gaps.
     *
     * @return whether the tensor is contiguous
     */
    public boolean isContiguous() {
        return tensor.is_contiguous();
    }

    /**
     * Returns the number of elements.
     *
     * @return the number of elements
     */
    public long size() {
        return tensor.numel();
    }

    /**
     * Returns the address of the first element in the memory of the tensor's device.
     *
     * @return the address
     */
    public long address() {
        try (Pointer data = tensor.data_ptr()) {
            return data == null ? 0 : data.address();
        }
    }

    /**
     * Returns the shape.
     *
     * @return the shape
     */
    public Shape getShape() {
        long[] sizes = new long[(int) tensor.dim()];
        for (int i = 0; i < sizes.length; i++) {
            sizes[i] = tensor.size(i);
        }
        return new Shape(sizes);
    }

    /**
     * Returns the data type.
     *
     * @return the data type
     * @throws IllegalArgumentException if DJL has no such type
     */
    public DataType getDataType() {
        ScalarType type = tensor.scalar_type().intern();
        return switch (type) {
            case Float -> DataType.FLOAT32;
            case Double -> DataType.FLOAT64;
            case Half -> DataType.FLOAT16;
            case BFloat16 -> DataType.BFLOAT16;
            case Int -> DataType.INT32;
            case Long -> DataType.INT64;
            case Short -> DataType.INT16;
            case Char -> DataType.INT8;
            case Byte -> DataType.UINT8;
            case Bool -> DataType.BOOLEAN;
            default -> throw Errors.argument("DJL has no data type for %s", type);
        };
    }

    /**
     * Returns the device that holds the memory.
     *
     * @return the device
     */
    public Device getDevice() {
        return tensor.is_cuda() ? Device.gpu(tensor.device().index()) : Device.cpu();
    }

    /**
     * Returns where an element is, as an error names it.
     *
     * @param place its place among all elements, the last axis running fastest
     * @param shape the shape of the array
     * @return the position along each axis, such as "[1, 2]"
     */
    public static String position(long place, Shape shape) {
        long[] position = new long[shape.dimension()];
        long rest = place;
        for (int i = position.length - 1; i >= 0; i--) {
            position[i] = rest % shape.get(i);
            rest /= shape.get(i);
        }
        return Arrays.toString(position);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return getShape() + " " + getDataType().name().toLowerCase(Locale.ROOT);
    }

    /** A pointer to something that another party owns. */
    private static final class BorrowedPointer extends Pointer {

        BorrowedPointer(long address) {
            this.address = address;
        }
    }
}
