package io.djltp.zoo.minilm;

import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * A tensor of an ONNX file, its {@code TensorProto}.
 *
 * @param name its name
 * @param shape its shape
 * @param type the number of its data type
 * @param elements its elements
 */
record OnnxTensor(String name, Shape shape, long type, ByteBuffer elements) {

    private static final int FLOAT = 1;

    /** Reads a tensor: field 1 are its lengths, 2 its type, 8 its name, 9 its elements. */
    static OnnxTensor read(ByteBuffer message) throws IOException {
        List<Long> lengths = new ArrayList<>();
        long[] type = new long[1];
        String[] name = {""};
        ByteBuffer[] elements = {ByteBuffer.allocate(0)};
        WireFormat.read(
                message,
                (number, value, bytes) -> {
                    if (number == 1 && bytes == null) {
                        lengths.add(value);
                    } else if (number == 1) {
                        while (bytes.hasRemaining()) {
                            lengths.add(WireFormat.varint(bytes)); // packed
                        }
                    } else if (number == 2) {
                        type[0] = value;
                    } else if (number == 8) {
                        name[0] = WireFormat.text(bytes);
                    } else if (number == 9) {
                        elements[0] = bytes;
                    }
                });
        long[] shape = lengths.stream().mapToLong(Long::longValue).toArray();
        ByteBuffer values = elements[0].order(ByteOrder.LITTLE_ENDIAN);
        return new OnnxTensor(name[0], new Shape(shape), type[0], values);
    }

    /** Returns whether it is of float32, and has all elements. */
    boolean isWholeFloat32() {
        return type == FLOAT && elements.remaining() == Float.BYTES * shape.size();
    }
}
