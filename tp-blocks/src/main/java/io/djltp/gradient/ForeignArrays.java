package io.djltp.gradient;

import ai.djl.nn.Parameter;

import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.TensorView;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * Arrays of parameters that are not those of the rank that computes with them: a block that does
 * not ask its parameter store works on the values of rank 0, and of a parameter that is cut on a
 * stand-in.
 */
final class ForeignArrays {

    private final ParallelParameters parameters;

    ForeignArrays(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /** Returns the leaves of a rank: its parameters by the address of their node. */
    Map<Long, Parameter> leavesOf(RankParameterStore store) {
        Map<Long, Parameter> leaves = new HashMap<>();
        for (Parameter parameter : parameters.getTrained()) {
            leaves.put(AutogradGraph.nodeOfLeaf(store.getHeld(parameter)), parameter);
        }
        return leaves;
    }

    /**
     * Checks a graph.
     *
     * @param context the rank that computes
     * @param reached the addresses of the nodes of the graph
     * @throws IllegalArgumentException if the graph has an array that is not the rank's
     */
    void check(ParallelContext context, Set<Long> reached) {
        Map<Long, Parameter> foreign = new HashMap<>();
        if (context.getLocalIndex() > 0) {
            foreign.putAll(leavesOf(parameters.getStores().get(0)));
        }
        for (Parameter parameter : parameters.getCut()) { // the model's arrays are placeholders
            if (TensorView.of(parameter.getArray()).requiresGradient()) {
                foreign.put(AutogradGraph.nodeOfLeaf(parameter.getArray()), parameter);
            }
        }
        foreign.forEach(
                (address, parameter) -> {
                    if (reached.contains(address)) {
                        throw new IllegalArgumentException(
                                "A block or a loss uses the array of parameter "
                                        + parameters.nameOf(parameter)
                                        + " "
                                        + parameter.getShape()
                                        + " itself, which is not that of each rank: ask the"
                                        + " parameter store,"
                                        + " parameterStore.getValue(parameter, device,"
                                        + " training). A penalty on weights is the optimizer's:"
                                        + " optWeightDecays(...)");
                    }
                });
    }
}
