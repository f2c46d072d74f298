package io.djltp.zoo.minilm;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.zoo.ParallelBlockFactory;

import java.nio.file.Path;
import java.util.Map;

/** Makes the network of all-MiniLM-L6-v2, {@link MiniLm}. */
public final class MiniLmBlockFactory extends ParallelBlockFactory {

    private static final long serialVersionUID = 1L;

    /** Creates a factory. */
    public MiniLmBlockFactory() {}

    /** {@inheritDoc} */
    @Override
    protected Block newNetwork(Path folder, Map<String, ?> arguments) {
        return MiniLm.create();
    }

    /** {@inheritDoc} */
    @Override
    protected Shape[] getInputShapes(Map<String, ?> arguments) {
        Shape tokens = new Shape(1, 1);
        return new Shape[] {tokens, tokens};
    }
}
