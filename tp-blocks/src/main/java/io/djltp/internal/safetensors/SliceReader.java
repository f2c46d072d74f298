package io.djltp.internal.safetensors;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.BFloat16;
import io.djltp.internal.torch.TensorBuffers;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;

/**
 * Reads of a stored tensor what a rank holds of it, and no other byte, into the memory of the
 * array.
 *
 * <p>Seen from a range of axis {@code a}, a tensor of shape {@code [d0, .., dn]} is {@code d0 x ..
 * x d(a-1)} blocks of {@code da x .. x dn} elements, of each of which the range is a run of
 * neighbours: one run for a cut by rows, one a row for a cut by columns.
 *
 * <p>DJL's PyTorch engine has no arrays of bfloat16: they become float32, which has all of them.
 */
public final class SliceReader {

    private final SafetensorsFile file;

    /**
     * Creates a reader.
     *
     * @param file the file, which stays the caller's to close
     */
    public SliceReader(SafetensorsFile file) {
        this.file = file;
    }

    /**
     * Reads a whole tensor.
     *
     * @param name its name
     * @param manager the manager of the array, whose device it gets
     * @return the array
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if DJL has no such data type
     */
    public NDArray read(String name, NDManager manager) throws IOException {
        StoredTensor tensor = file.getTensor(name);
        return fill(
                tensor, tensor.shape(), manager, target -> target.fill(tensor, 0, tensor.bytes()));
    }

    /**
     * Reads ranges of an axis of a tensor.
     *
     * @param name its name
     * @param axis the axis
     * @param ranges the ranges, in the order in which the array has them
     * @param manager the manager of the array, whose device it gets
     * @return the array: the shape of the tensor, with the length of all ranges along the axis
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if the tensor has no such axis or range, or DJL no such data
     *     type
     */
    public NDArray read(String name, int axis, List<ShardRange> ranges, NDManager manager)
            throws IOException {
        StoredTensor tensor = file.getTensor(name);
        long[] shape = tensor.shape().getShape().clone();
        if (axis < 0 || axis >= shape.length) {
            throw new IllegalArgumentException(
                    "Tensor " + name + " " + tensor.shape() + " has no axis " + axis);
        }
        for (ShardRange range : ranges) {
            if (range.end() > shape[axis]) {
                throw new IllegalArgumentException(
                        String.format(
                                "Axis %d of tensor %s %s has no range %d to %d",
                                axis, name, tensor.shape(), range.start(), range.end()));
            }
        }
        long length = shape[axis];
        long inner = tensor.width();
        for (int i = axis + 1; i < shape.length; i++) {
            inner *= shape[i];
        }
        long block = inner; // bytes of an index of the axis
        long blocks = length * block == 0 ? 0 : tensor.bytes() / (length * block);
        shape[axis] = ranges.stream().mapToLong(ShardRange::length).sum();
        return fill(
                tensor,
                new Shape(shape),
                manager,
                target -> {
                    for (long i = 0; i < blocks; i++) {
                        for (ShardRange range : ranges) {
                            long start = (i * length + range.start()) * block;
                            target.fill(tensor, start, range.length() * block);
                        }
                    }
                });
    }

    private NDArray fill(StoredTensor tensor, Shape shape, NDManager manager, Source source)
            throws IOException {
        Device device = manager.getDevice();
        NDArray array = null;
        try (NDManager host = manager.newSubManager(Device.cpu())) {
            boolean brain = tensor.dataType() == DataType.BFLOAT16;
            array = host.create(shape, brain ? BFloat16.BITS : tensor.dataType());
            source.fill(new Target(TensorBuffers.of(array)));
            if (brain) {
                array = BFloat16.toFloat32(array, host);
            }
            if (device.isGpu()) {
                array = array.toDevice(device, true);
            }
            array.attach(manager);
            return array;
        }
    }

    /** What fills an array. */
    private interface Source {

        void fill(Target target) throws IOException;
    }

    /** The memory of an array, which is filled from its beginning to its end. */
    private final class Target {

        private final ByteBuffer[] buffers;
        private int current;

        Target(ByteBuffer[] buffers) {
            this.buffers = buffers;
        }

        void fill(StoredTensor tensor, long start, long bytes) throws IOException {
            long at = start;
            long left = bytes;
            while (left > 0) {
                ByteBuffer buffer = buffers[current];
                if (!buffer.hasRemaining()) {
                    current++;
                    continue;
                }
                int count = (int) Math.min(left, buffer.remaining());
                ByteBuffer piece = buffer.slice(buffer.position(), count);
                file.read(tensor, at, piece);
                buffer.position(buffer.position() + count);
                at += count;
                left -= count;
            }
        }
    }
}
