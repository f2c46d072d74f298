package io.djltp.checkpoint;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.util.EnumSet;
import java.util.Set;

/**
 * A tensor of a checkpoint: what the whole is, and which ranges of which axis each part has.
 *
 * @param name the name: of a parameter, or {@code parameter/array} for what is kept of it
 * @param type the data type
 * @param shape the shape of the whole
 * @param axis the axis that is cut, or -1 if the tensor is not
 * @param cut the ranges of the axis in each part, or {@code null}: one part has the whole
 */
public record CutTensor(String name, DataType type, Shape shape, int axis, @Nullable Cut cut) {

    /** The data types of which DJL's PyTorch engine makes arrays: of others it ends the process. */
    private static final Set<DataType> TYPES =
            EnumSet.of(
                    DataType.FLOAT32,
                    DataType.FLOAT64,
                    DataType.FLOAT16,
                    DataType.INT64,
                    DataType.INT32,
                    DataType.INT8,
                    DataType.UINT8,
                    DataType.BOOLEAN);

    /**
     * Checks that the cut is one of the axis.
     *
     * @param name the name
     * @param type the data type, one that DJL has arrays of on PyTorch
     * @param shape the shape of the whole
     * @param axis the axis that is cut, or -1
     * @param cut the cut, or {@code null}
     * @throws IllegalArgumentException if the shape has no such axis, or one of another length, or
     *     DJL no arrays of the data type
     */
    public CutTensor {
        if (!TYPES.contains(type)) {
            throw Errors.argument("Tensor %s is %s, and a checkpoint has %s", name, type, TYPES);
        }
        if (cut == null ? axis != -1 : axis < 0 || axis >= shape.dimension()) {
            throw Errors.argument("Tensor %s %s cannot be cut along axis %s", name, shape, axis);
        }
        if (cut != null && cut.getLength() != shape.get(axis)) {
            throw Errors.argument(
                    "Axis %d of tensor %s %s has the length %d, and its cut %d",
                    axis, name, shape, shape.get(axis), cut.getLength());
        }
    }

    /**
     * Describes a tensor that is not cut: one part has it.
     *
     * @param name the name
     * @param type the data type
     * @param shape the shape
     * @return the tensor
     */
    public static CutTensor whole(String name, DataType type, Shape shape) {
        return new CutTensor(name, type, shape, -1, null);
    }

    /**
     * Returns whether the tensor is not cut, and lies in part 0 only.
     *
     * @return whether there is no cut
     */
    public boolean isWhole() {
        return cut == null;
    }

    /** Returns whether a part, from 0, has something of the tensor. */
    boolean isIn(int part) {
        return cut == null ? part == 0 : part < cut.getRanks();
    }

    /** Returns the shape of what a part has: with the length of its ranges along the axis. */
    Shape getShardShape(int part) {
        if (cut == null) {
            return shape;
        }
        long[] local = shape.getShape().clone();
        local[axis] = cut.getShardLength(part);
        return new Shape(local);
    }

    /** Returns the tensor as a checkpoint of another number of parts has it. */
    CutTensor cutInto(int parts) {

        return cut == null
                ? this
                : new CutTensor(name, type, shape, axis, Cut.balanced(cut.getLength(), parts));
    }
}
