package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;

import io.djltp.layout.PassTrace;
import io.djltp.layout.Region;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Finds out in which regions a part of a network has used parameters, from a graph that is dropped
 * before the loss is there (recomputation). What it finds is noted at the node of the part's
 * output, and counts where a loss depends on that.
 *
 * <p>As with whole passes, a part with the structure of an earlier one is not looked at again. An
 * instance belongs to one rank.
 */
final class PartFlow {

    private final ParallelParameters parameters;
    private final ForeignArrays foreign;
    private final Map<Long, Map<Parameter, Set<Region>>> known = new HashMap<>();

    PartFlow(ParallelParameters parameters, ForeignArrays foreign) {
        this.parameters = parameters;
        this.foreign = foreign;
    }

    /** Returns the uses of parameters in a part, see {@link io.djltp.layout.PartAnalysis}. */
    Map<Parameter, Set<Region>> find(
            ParallelContext context, PassTrace trace, NDArray result, Region root) {
        if (context.getSize() == 1) {
            return Map.of();
        }
        long key = 31 * trace.getStructure(result) + root.index();
        Map<Parameter, Set<Region>> found = known.get(key);
        if (found == null) {
            Map<Long, Set<Region>> regions =
                    GradientFlow.check(trace, new NDList(result), List.of(root), 0);
            foreign.check(context, regions.keySet());
            Map<Long, Parameter> leaves = foreign.leavesOf(parameters.getStore(context));
            found = usesOf(leaves, regions, trace);
            known.put(key, found);
        }
        return found;
    }

    /**
     * Returns in which regions parameters were used.
     *
     * @param leaves the parameters by the address of their node
     * @param regions the regions of each node that a loss, or the output of a part, depends on
     * @param trace what the pass has left behind, with the uses in parts whose graph was dropped
     */
    static Map<Parameter, Set<Region>> usesOf(
            Map<Long, Parameter> leaves, Map<Long, Set<Region>> regions, PassTrace trace) {
        Map<Parameter, Set<Region>> uses = new HashMap<>();
        leaves.forEach(
                (address, parameter) -> {
                    if (regions.containsKey(address)) {
                        add(uses, parameter, regions.get(address));
                    }
                });
        trace.getBoundaries()
                .forEach(
                        (address, boundary) -> {
                            if (regions.containsKey(address)) {
                                boundary.uses().forEach((key, used) -> add(uses, key, used));
                            }
                        });
        return uses;
    }

    private static void add(
            Map<Parameter, Set<Region>> uses, Parameter parameter, Set<Region> used) {
        uses.computeIfAbsent(parameter, key -> new HashSet<>()).addAll(used);
    }
}
