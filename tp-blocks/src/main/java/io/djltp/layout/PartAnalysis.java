package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import java.util.Map;
import java.util.Set;

/**
 * Looks at the graph of a part of a network that is dropped before the analysis of the whole pass.
 */
@FunctionalInterface
public interface PartAnalysis {

    /**
     * Returns how a part has used parameters.
     *
     * @param trace what its pass has left behind
     * @param result what it has computed
     * @param root the region of the result
     * @return the regions in which each parameter was used
     * @throws IllegalArgumentException if the part cannot be computed by ranks
     */
    Map<Parameter, Set<Region>> usesIn(PassTrace trace, NDArray result, Region root);
}
