package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
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
     * Returns consecutive rows of a parameter, as they are after the last step. Rows of one
     * parameter are asked for until it is {@linkplain #release released}.
     *
     * @param parameter the parameter, cut or not
     * @param firstRow the first of the rows (indices of axis 0)
     * @param count how many
     * @param manager the manager of the rows, whose device they get
     * @return the rows, which may be the memory of the weight itself
     */
    NDArray rows(Parameter parameter, long firstRow, long count, NDManager manager);

    /**
     * Saves parameters whole, gathered one after another.
     *
     * @param parameters the parameters
     * @param os where they go
     * @throws IOException if they cannot be written, or one is too large for DJL's format
     */
    default void save(Iterable<Parameter> parameters, DataOutputStream os) throws IOException {
        for (Parameter parameter : parameters) {
            DjlFormat.check(parameter.getName(), parameter);
            gather(parameter);
            try {
                parameter.save(os);
            } finally {
                release(parameter);
            }
        }
    }
}
