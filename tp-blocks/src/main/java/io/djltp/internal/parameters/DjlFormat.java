package io.djltp.internal.parameters;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import java.io.IOException;
import java.util.Locale;

/** What DJL's own format of parameters can hold: it encodes an array as one Java array of bytes. */
public final class DjlFormat {

    /** The most bytes of a parameter, below the longest array of bytes by DJL's header. */
    public static final long LIMIT = Integer.MAX_VALUE - 100;

    private DjlFormat() {}

    /**
     * Checks that a model can be saved.
     *
     * @param block the model
     * @throws IOException if a parameter is too large
     */
    public static void check(Block block) throws IOException {
        for (Pair<String, Parameter> named : block.getParameters()) {
            check(named.getKey(), named.getValue());
        }
    }

    /**
     * Checks that a parameter can be saved.
     *
     * @param name its name
     * @param parameter the parameter
     * @throws IOException if it is too large
     */
    public static void check(String name, Parameter parameter) throws IOException {
        if (!parameter.isInitialized()) {
            return;
        }
        Shape shape = parameter.getShape();
        long bytes = shape.size() * parameter.getArray().getDataType().getNumOfBytes();
        if (bytes > LIMIT) {
            throw new IOException(
                    String.format(
                            Locale.ROOT,
                            "The parameter %s %s has %,d bytes, and DJL's format can hold %,d:"
                                    + " write it with io.djltp.exchange.WeightExport and"
                                    + " NameMapping.own(), and read that with PretrainedWeights",
                            name,
                            shape,
                            bytes,
                            LIMIT));
        }
    }
}
