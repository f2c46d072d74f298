package io.djltp.internal.parameters;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Finds the shapes of a network's parameters and inputs as DJL does, by initializing it, but with
 * one element instead of each parameter.
 */
public final class ShapesOnly {

    private ShapesOnly() {}

    /**
     * Finds the shapes of a network, which is as uninitialized as before when this returns. One
     * that has values keeps them, and the shapes of the inputs that it was initialized with.
     *
     * @param network the network
     * @param dataType the data type
     * @param reader reads the shapes while the network looks initialized
     * @param inputs the shapes of the inputs of the whole batch
     */
    public static void read(Block network, DataType dataType, Runnable reader, Shape... inputs) {
        Map<Parameter, Initializer> initializers = new IdentityHashMap<>();
        for (Parameter parameter : network.getParameters().values()) {
            if (!parameter.isInitialized()) {
                // one that blocks share comes more than once
                initializers.putIfAbsent(parameter, parameter.getInitializer());
                parameter.setInitializer(Placeholder::of);
            }
        }
        Shape[] before = network.isInitialized() ? network.getInputShapes() : null;
        try (NDManager manager = NDManager.newBaseManager()) {
            network.initialize(manager, dataType, inputs);
            try {
                reader.run();
            } finally {
                if (before != null) {
                    network.initialize(manager, dataType, before);
                }
            }
        } finally {
            initializers.forEach(
                    (parameter, initializer) -> {
                        parameter.setInitializer(initializer);
                        parameter.close();
                    });
        }
    }
}
