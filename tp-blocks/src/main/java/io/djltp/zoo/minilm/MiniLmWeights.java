package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.ParameterPaths;

import java.io.IOException;
import java.io.InputStream;

/** Gives the parameters of a {@link MiniLm} the values that the pretrained model has. */
public final class MiniLmWeights {

    private MiniLmWeights() {}

    /**
     * Initializes a network with the values of the pretrained model.
     *
     * @param network the network
     * @param manager the manager of the values
     * @throws IOException if the file cannot be read
     */
    public static void load(MiniLm network, NDManager manager) throws IOException {
        try (InputStream file = MiniLmFiles.model()) {
            OnnxWeights weights = OnnxWeights.read(file);
            NameMapping names = NameMapping.bert();
            ParameterPaths.of(network)
                    .forEach(
                            (path, parameter) -> {
                                String name = names.findTensor(path, weights.names());
                                parameter.setInitializer(
                                        (of, shape, type) -> weights.get(of, name, shape));
                            });
            Shape tokens = new Shape(1, 1);
            network.initialize(manager, DataType.FLOAT32, tokens, tokens);
        }
    }
}
