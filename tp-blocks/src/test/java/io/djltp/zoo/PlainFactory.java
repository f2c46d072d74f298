package io.djltp.zoo;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;

import java.nio.file.Path;
import java.util.Map;

/** A network of DJL's own blocks. */
public final class PlainFactory extends ParallelBlockFactory {

    private static final long serialVersionUID = 1L;

    /** {@inheritDoc} */
    @Override
    protected Block newNetwork(Path folder, Map<String, ?> arguments) {
        return Linear.builder().setUnits(5).build();
    }

    /** {@inheritDoc} */
    @Override
    protected Shape[] getInputShapes(Map<String, ?> arguments) {
        return new Shape[] {TwoLayersFactory.INPUT};
    }
}
