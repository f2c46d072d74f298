package io.djltp.internal.safetensors;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

/**
 * A tensor of a safetensors file.
 *
 * @param name the name
 * @param type the name of the data type in the format, such as F32 or BF16; DJL has no arrays of
 *     some types
 * @param shape the shape; empty for a scalar
 * @param begin where its bytes begin, counted from the end of the header
 * @param bytes the number of its bytes
 */
public record StoredTensor(String name, String type, Shape shape, long begin, long bytes) {

    /**
     * Returns the data type of DJL.
     *
     * @return the data type
     * @throws IllegalArgumentException if DJL has none
     */
    public DataType dataType() {
        DataType found = findDataType();
        if (found == null) {
            throw Errors.argument("DJL has no data type for tensor %s of type %s", name, type);
        }
        return found;
    }

    /** Returns the data type of DJL, or {@code null} if it has none. */
    @Nullable DataType findDataType() {
        try {
            return DataType.fromSafetensors(type);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }
}
