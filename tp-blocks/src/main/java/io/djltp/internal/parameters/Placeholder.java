package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.internal.torch.ArrayMemory;

/**
 * What the model holds of a parameter while ranks hold shards of it: a few elements instead of all,
 * which are NaN, so that no result looks right.
 */
final class Placeholder {

    private Placeholder() {}

    /** Returns a placeholder of the full shape. */
    static NDArray of(NDManager manager, Shape shape, DataType dataType) {
        long elements = 1;
        for (long length : shape.getShape()) {
            elements += Math.max(0, length - 1);
        }
        Shape few = new Shape(elements);
        try (NDArray line = manager.full(few, noWeight(dataType), dataType)) {
            return ArrayMemory.overlapped(line, shape);
        }
    }

    /** Integers have no NaN: the number that is furthest from all others. */
    private static float noWeight(DataType dataType) {
        switch (dataType) {
            case INT8:
                return Byte.MIN_VALUE;
            case UINT8:
                return 255;
            case INT16:
                return Short.MIN_VALUE;
            case INT32:
                return Integer.MIN_VALUE;
            case INT64:
                return Long.MIN_VALUE;
            default:
                return dataType.isFloating() ? Float.NaN : 0;
        }
    }

    /** Replaces what the model holds of a parameter by a placeholder. */
    static void put(NDManager manager, Parameter parameter) {
        NDArray array = parameter.getArray();
        replace(parameter, of(manager, array.getShape(), array.getDataType()));
        showInGraphs(parameter);
    }

    /** What is computed from a placeholder can be found, that of a frozen parameter, too. */
    static void showInGraphs(Parameter parameter) {
        if (parameter.getArray().getDataType().isFloating()) {
            parameter.getArray().setRequiresGradient(true);
        }
    }

    /**
     * Replaces what the model holds of a parameter. The array stays the same object: a predictor or
     * a trainer of DJL's may keep it.
     */
    static void replace(Parameter parameter, NDArray contents) {
        NDArray array = parameter.getArray();
        ArrayMemory.replace(array, contents);
        array.setRequiresGradient(parameter.requiresGradient());
    }
}
