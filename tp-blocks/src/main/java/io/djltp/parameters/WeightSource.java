package io.djltp.parameters;

import ai.djl.nn.Parameter;

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
}
