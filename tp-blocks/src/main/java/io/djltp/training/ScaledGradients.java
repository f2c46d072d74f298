package io.djltp.training;

import ai.djl.nn.Parameter;

import io.djltp.optimizer.LossScale;
import io.djltp.parameters.ParallelParameters;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * Which parameters may have a gradient with the scale of the present loss. A gradient that waits
 * while its parameter is frozen would be used with the scale of another.
 */
final class ScaledGradients {

    private final LossScale scale;
    private final ParallelParameters parameters;
    private final Set<Parameter> present = new LinkedHashSet<>(); // since the last step

    ScaledGradients(LossScale scale, ParallelParameters parameters) {
        this.scale = scale;
        this.parameters = parameters;
    }

    /** Notes a backward pass. */
    void add() {
        if (scale.isUsed()) {
            present.addAll(parameters.getTrained());
        }
    }

    /** Notes that the gradients of what is trained were dropped. */
    void drop() {
        if (scale.isUsed()) {
            parameters.getTrained().forEach(present::remove);
        }
    }

    /**
     * Checks that a step uses all of them.
     *
     * @param trained what it updates
     * @throws IllegalStateException if a parameter was frozen since the backward pass
     */
    void check(List<Parameter> trained) {
        if (present.isEmpty()) {
            return;
        }
        Set<Parameter> waiting = new LinkedHashSet<>(present);
        trained.forEach(waiting::remove);
        if (!waiting.isEmpty()) {
            Parameter parameter = waiting.iterator().next();
            throw new IllegalStateException(
                    "Parameter "
                            + parameters.nameOf(parameter)
                            + " "
                            + parameter.getArray().getShape()
                            + " was frozen between backward() and step(): its gradient would wait"
                            + " until it is thawed, with the scale of this loss (optLossScaling),"
                            + " when that of the loss is another. Freeze it before the forward pass"
                            + " or after the step, or call zeroGradients() of the gradient collector"
                            + " before");
        }
    }

    /** Notes a step. */
    void clear() {
        present.clear();
    }
}
