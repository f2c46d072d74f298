package io.djltp.training;

import ai.djl.nn.Parameter;

import io.djltp.gradient.GradientGroups;
import io.djltp.gradient.PartialAxes;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;

import java.util.Map;

/**
 * Terms that a loop of the caller's own has computed from parameters of the network, such as a
 * penalty on weights, and added to the loss. The gradient of such a term comes to the model's array
 * alone, which is that of rank 0, or of nobody. That is right where a step sums the gradients of
 * all ranks.
 */
final class TermsOfParameters {

    private final RankPool ranks;
    private final ParallelParameters parameters;

    TermsOfParameters(RankPool ranks, ParallelParameters parameters) {
        this.ranks = ranks;
        this.parameters = parameters;
    }

    /**
     * Checks what is to be differentiated.
     *
     * @param graph its graph
     * @param uses how the losses of it depend on parameters
     * @throws IllegalArgumentException if the graph has a parameter whose gradient would be lost
     */
    void check(CallersGraph graph, Map<Parameter, PartialAxes> uses) {
        for (Parameter parameter : parameters.getAll()) {
            if (isIn(graph, parameter) && !isSummed(graph, parameter, uses.get(parameter))) {
                throw new IllegalArgumentException(
                        "A term of what is differentiated was computed from the array of parameter "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " itself, outside of the loss. "
                                + reason(parameter));
            }
        }
    }

    private boolean isIn(CallersGraph graph, Parameter parameter) {
        return parameter.isInitialized() && graph.has(parameter.getArray())
                || parameters.getStores().stream()
                        .filter(store -> store.contains(parameter))
                        .anyMatch(store -> graph.has(store.getHeld(parameter)));
    }

    /** Returns whether the gradient of rank 0's array comes to the arrays of all ranks. */
    private boolean isSummed(CallersGraph graph, Parameter parameter, PartialAxes axes) {
        ParallelContext first = ranks.getContext(0);
        RankParameterStore store = parameters.getStores().get(0);
        boolean single = ranks.getWorldSize() == 1;
        return !ranks.isDistributed() // else each process would add it
                && parameters.getStrategy(parameter) == null
                && !isUpdatedByBlock(parameter)
                && graph.has(store.getHeld(parameter))
                && (single || axes != null && GradientGroups.isSummedOverAll(first, axes));
    }

    private boolean isUpdatedByBlock(Parameter parameter) {
        return ranks.getContext(0).getParticipants().getParameters().contains(parameter);
    }

    private String reason(Parameter parameter) {
        String decay = "let the optimizer do it: optWeightDecays(...)";
        if (isUpdatedByBlock(parameter)) {
            return "Its block, such as a fused ClassificationHead, updates it itself, and gets no"
                    + " gradient of such a term. If it is a penalty on weights, "
                    + decay;
        }
        if (parameters.getStrategy(parameter) != null) {
            return "The ranks have a part of it each, and the model's array is a placeholder of NaN"
                    + " until the trainer is closed. If it is a penalty on weights, "
                    + decay
                    + "; in DATA mode nothing is cut";
        }
        return "Each rank has an array of its own, and rank 0 alone would get this gradient. If it"
                + " is a penalty on weights, "
                + decay
                + "; if it needs no gradient, take stopGradient() of the array. With one rank such a"
                + " term is right, and in DATA mode in one process, if the loss depends on the"
                + " parameter too";
    }
}
