package io.djltp.gradient;

import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.layout.ParallelMode;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Over which ranks the gradient of each replicated parameter is summed in the present step. It
 * follows from how the parameter was used in the passes of the step, never from its place in the
 * tree of blocks.
 */
public final class GradientGroups {

    private final ParallelParameters parameters;
    private final Map<Parameter, Boolean> partial = new IdentityHashMap<>();

    /**
     * Creates the groups of a training.
     *
     * @param parameters what the ranks hold
     */
    public GradientGroups(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /**
     * Adds a pass that is differentiated.
     *
     * @param uses for each parameter that it depends on, whether a rank's gradient is a summand
     * @throws IllegalArgumentException if another pass of the step has used a parameter otherwise
     */
    public void add(Map<Parameter, Boolean> uses) {
        uses.forEach(
                (parameter, summand) -> {
                    Boolean before = partial.put(parameter, summand);
                    if (before != null && !before.equals(summand)) {
                        throw new IllegalArgumentException(
                                "Parameter "
                                        + parameters.nameOf(parameter)
                                        + " was used with the part of a rank in one of the passes"
                                        + " before trainer.step(), and with the whole in another:"
                                        + " call trainer.step() between the two");
                    }
                });
    }

    /**
     * Returns the group over which a rank's gradient is summed.
     *
     * @param context the rank
     * @param parameter the parameter
     * @return the group, or {@code null} if the rank has the whole gradient of what it holds
     */
    Communicator of(ParallelContext context, Parameter parameter) {
        boolean data = context.getMode() == ParallelMode.DATA;
        Communicator group = data ? context.getDataGroup() : context.getTensorGroup();
        // what was not used with this rank's rows may have been with those of another
        boolean elsewhere = context.getMode() != ParallelMode.TENSOR;
        boolean summed =
                parameters.getStrategy(parameter) == null
                        && partial.getOrDefault(parameter, elsewhere);
        return summed && group.getSize() > 1 ? group : null;
    }

    /** Begins the next step. */
    public void clear() {
        partial.clear();
    }
}
