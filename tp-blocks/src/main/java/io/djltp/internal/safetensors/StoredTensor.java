package io.djltp.internal.safetensors;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import java.util.Map;

/**
 * A tensor of a safetensors file.
 *
 * @param name the name
 * @param type the name of the data type in the format, such as F32 or BF16
 * @param shape the shape; empty for a scalar
 * @param begin where its bytes begin, counted from the end of the header
 */
public record StoredTensor(String name, String type, Shape shape, long begin) {

    /** The bytes of an element. DJL has no arrays of some of these types. */
    private static final Map<String, Integer> WIDTHS =
            Map.ofEntries(
                    Map.entry("BOOL", 1),
                    Map.entry("U8", 1),
                    Map.entry("I8", 1),
                    Map.entry("F8_E4M3", 1),
                    Map.entry("F8_E5M2", 1),
                    Map.entry("F8_E8M0", 1),
                    Map.entry("U16", 2),
                    Map.entry("I16", 2),
                    Map.entry("F16", 2),
                    Map.entry("BF16", 2),
                    Map.entry("U32", 4),
                    Map.entry("I32", 4),
                    Map.entry("F32", 4),
                    Map.entry("U64", 8),
                    Map.entry("I64", 8),
                    Map.entry("C64", 8),
                    Map.entry("F64", 8));

    /**
     * Checks the type.
     *
     * @param name the name
     * @param type the name of the data type in the format
     * @param shape the shape
     * @param begin where its bytes begin
     * @throws IllegalArgumentException if the type is not known or the tensor has too many elements
     */
    public StoredTensor {
        if (!WIDTHS.containsKey(type)) {
            throw new IllegalArgumentException(
                    "Tensor " + name + " has the data type " + type + ", which is not known");
        }
        bytesOf(name, type, shape);
    }

    /**
     * Returns the bytes of the tensor.
     *
     * @return the number of bytes
     */
    public long bytes() {
        return bytesOf(name, type, shape);
    }

    /**
     * Returns the bytes of an element.
     *
     * @return the number of bytes
     */
    public int width() {
        return WIDTHS.get(type);
    }

    /**
     * Returns the data type of DJL.
     *
     * @return the data type
     * @throws IllegalArgumentException if DJL has none
     */
    public DataType dataType() {
        try {
            return DataType.fromSafetensors(type);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "DJL has no data type for tensor " + name + " of type " + type, e);
        }
    }

    private static long bytesOf(String name, String type, Shape shape) {
        long bytes = WIDTHS.get(type);
        try {
            for (long length : shape.getShape()) {
                bytes = Math.multiplyExact(bytes, length);
            }
        } catch (ArithmeticException e) {
            throw new IllegalArgumentException(
                    "Tensor " + name + " " + shape + " has more bytes than a file can have", e);
        }
        return bytes;
    }
}
