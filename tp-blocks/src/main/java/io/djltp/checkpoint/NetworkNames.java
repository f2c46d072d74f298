package io.djltp.checkpoint;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ParallelParameters;

import java.util.IdentityHashMap;
import java.util.Map;
import java.util.function.Function;

/** The names of parameters and blocks in a network, by which another run of it finds them. */
final class NetworkNames implements Function<Object, String> {

    private final ParallelParameters parameters;
    private final Map<Object, String> paths = new IdentityHashMap<>();

    NetworkNames(Block network, ParallelParameters parameters) {
        this.parameters = parameters;
        BlockWalk.of(network, (block, path, certain) -> paths.put(block, path));
    }

    /** {@inheritDoc} */
    @Override
    public String apply(Object part) {
        return part instanceof Parameter parameter ? parameters.nameOf(parameter) : paths.get(part);
    }
}
