package io.djltp.parameters;

import ai.djl.nn.Parameter;

import java.io.DataOutputStream;
import java.io.IOException;

/** Where the whole of a parameter comes from while the ranks hold its shards. */
public interface WeightSource {

    /**
     * Gathers the shards of a parameter, which then holds the whole.
     *
     * @param parameter the parameter
     */
    void gather(Parameter parameter);

    /**
     * Frees the whole again.
     *
     * @param parameter the parameter
     */
    void release(Parameter parameter);

    /**
     * Saves parameters whole, gathered one after another.
     *
     * @param parameters the parameters
     * @param os where they go
     * @throws IOException if they cannot be written
     */
    default void save(Iterable<Parameter> parameters, DataOutputStream os) throws IOException {
        for (Parameter parameter : parameters) {
            gather(parameter);
            try {
                parameter.save(os);
            } finally {
                release(parameter);
            }
        }
    }
}
