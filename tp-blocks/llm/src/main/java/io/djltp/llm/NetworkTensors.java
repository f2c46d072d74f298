package io.djltp.llm;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.NameMapping.Source;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.internal.safetensors.StoredTensor;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Set;

/**
 * Which tensors of a folder are the parameters of the network of its model. Names are in the table
 * that {@link ModelFamily#mapping} returns, and nowhere else.
 */
final class NetworkTensors {

    private final ModelConfig config;
    private final SafetensorsFolder files;
    private final NameMapping mapping;
    private final Set<String> parameters; // by NameMapping's paths

    NetworkTensors(ModelConfig config, SafetensorsFolder files) {
        this.config = config;
        this.files = files;
        mapping = config.family().mapping();
        parameters = NameMapping.paths(config.newBlock(false)).keySet();
    }

    /** Returns whether the network has a parameter, such as {@code lm_head.weight}. */
    boolean has(String parameter) {
        return parameters.contains(parameter);
    }

    /** Returns what a parameter is read from. */
    Source get(String parameter) {
        return mapping.getSource(parameter, parameters, files.getNames());
    }

    /** Returns the name of the tensor that a parameter is. */
    String name(String parameter) {
        return get(parameter).tensors().get(0);
    }

    /** Returns a tensor by its name. */
    StoredTensor stored(String name) throws IOException {
        StoredTensor tensor = files.get(name);
        if (tensor == null) {
            throw new FileNotFoundException("There is no tensor " + name + " in " + files);
        }
        return tensor;
    }

    /**
     * Returns what the parameters of a layer begin with; the only layer of a stack has no number.
     */
    String layer(String stack, int index) {
        return stack + ".layer" + (config.getLayers() == 1 ? "" : "" + index) + ".";
    }
}
