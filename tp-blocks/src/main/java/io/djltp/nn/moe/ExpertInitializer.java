package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.initializer.Initializer;

/**
 * Initializes the stacked weights of experts, [experts, outputs, inputs], as DJL initializes each
 * one by default: a normal distribution with the deviation sqrt(2 / inputs). DJL would take the
 * last axis for that of a convolution.
 */
final class ExpertInitializer implements Initializer {

    /** {@inheritDoc} */
    @Override
    public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
        float deviation = (float) Math.sqrt(2.0 / shape.get(shape.dimension() - 1));
        return manager.randomNormal(0, deviation, shape, dataType);
    }
}
