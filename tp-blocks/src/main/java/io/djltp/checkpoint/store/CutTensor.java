package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

/**
 * A tensor of a checkpoint: what the whole is, and which ranges of which axis each part has.
 *
 * @param name the name: of a parameter, or {@code parameter/array} for what is kept of it
 * @param type the data type
 * @param shape the shape of the whole
 * @param axis the axis that is cut, or -1 if the tensor is not
 * @param cut the ranges of the axis in each part, or {@code null}: one part has the whole
 */
public record CutTensor(String name, DataType type, Shape shape, int axis, Cut cut) {

    /**
     * Checks that the cut is one of the axis.
     *
     * @param name the name
     * @param type the data type, one that the safetensors format has
     * @param shape the shape of the whole
     * @param axis the axis that is cut, or -1
     * @param cut the cut, or {@code null}
     * @throws IllegalArgumentException if the shape has no such axis, or one of another length, or
     *     the format no such data type
     */
    public CutTensor {
        type.asSafetensors(); // throws
        if (cut == null ? axis != -1 : axis < 0 || axis >= shape.dimension()) {
            throw new IllegalArgumentException(
                    "Tensor " + name + " " + shape + " cannot be cut along axis " + axis);
        }
        if (cut != null && cut.getLength() != shape.get(axis)) {
            throw new IllegalArgumentException(
                    String.format(
                            "Axis %d of tensor %s %s has the length %d, and its cut %d",
                            axis, name, shape, shape.get(axis), cut.getLength()));
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

    /**
     * Returns whether a part has something of the tensor.
     *
     * @param part the part, from 0
     * @return whether it has a tensor of this name
     */
    public boolean isIn(int part) {
        return cut == null ? part == 0 : part < cut.getRanks();
    }

    /**
     * Returns the shape of what a part has.
     *
     * @param part the part, from 0
     * @return the shape of the whole, with the length of the part's ranges along the axis
     */
    public Shape getShardShape(int part) {
        if (cut == null) {
            return shape;
        }
        long[] local = shape.getShape().clone();
        local[axis] = cut.getShardLength(part);
        return new Shape(local);
    }
}
