package io.djltp.internal.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.internal.Errors;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;

import org.jspecify.annotations.Nullable;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Over which axes of the mesh a rank's gradient of each parameter is a summand. It follows from the
 * placement of what the parameter was used with: where a rank computes with its rows, or its shard
 * of the features, it gets a summand of the gradient of a replicated parameter; where all ranks
 * compute the same, it gets the whole.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ParameterUses {

    private final ParallelParameters parameters;

    /**
     * Creates the uses of a training.
     *
     * @param parameters what the ranks hold
     */
    public ParameterUses(ParallelParameters parameters) {
        this.parameters = parameters;
    }

    /**
     * Returns for each parameter that a pass has used over which axes the rank's gradient of it is
     * a summand.
     *
     * @param context the rank
     * @param pass the pass
     * @return the parameters; empty with one rank
     * @throws IllegalArgumentException if a parameter was used in two ways whose gradients cannot
     *     be added
     */
    public Map<Parameter, PartialAxes> find(ParallelContext context, ForwardPass pass) {
        checkOneUse(context, pass.getUses().keySet());
        if (context.getSize() == 1) {
            return Map.of();
        }
        boolean overlaid = context.getMesh().isOverlaid();
        Map<Parameter, PartialAxes> found = new HashMap<>();
        pass.getUses().forEach((key, used) -> found.put(key, partialAxes(key, used, overlaid)));
        return found;
    }

    /** Of axes over the same ranks, one is as good as the other. */
    private PartialAxes partialAxes(Parameter parameter, Set<Region> used, boolean overlaid) {
        boolean cut = parameters.getStrategy(parameter) != null; // over the axis tensor
        Set<PartialAxes> axes = new HashSet<>();
        for (Region region : used) {
            boolean own = region.features() != Region.Features.REPLICATED || region.isTokensCut();
            boolean shard = !cut && own;
            boolean summand = overlaid && (region.isRowsCut() || shard);
            axes.add(
                    overlaid
                            ? new PartialAxes(summand, summand)
                            : new PartialAxes(region.isRowsCut(), shard));
        }
        if (axes.size() > 1) {
            throw Errors.argument(
                    "Parameter %s %s is used where all ranks compute the same, and where each"
                            + " computes its part (its rows or its slice of the features): of the"
                            + " first use a rank has the whole gradient, of the second a summand."
                            + " Give the two uses a block each. If one of the uses is a penalty"
                            + " in the loss, let the optimizer do it: optWeightDecays(...). If a"
                            + " branch of the body is joined behind a layer with"
                            + " optBatchShardedInput(true), join it before the layer",
                    parameters.nameOf(parameter), parameter.getShape());
        }
        return axes.iterator().next();
    }

    /** A parameter that a block updates itself has no gradient for another use. */
    private void checkOneUse(ParallelContext context, Set<Parameter> differentiated) {
        for (Parameter parameter : context.getParticipants().getParameters()) {
            if (differentiated.contains(parameter)) {
                throw Errors.argument(
                        "Parameter %s %s is shared by a block that updates it itself (such as a"
                                + " ClassificationHead or an EmbeddingBag) and by another one,"
                                + " whose gradient would be lost. Build the head with"
                                + " optFusedLoss(false), use DJL's embedding, or give each block"
                                + " a parameter of its own",
                        parameters.nameOf(parameter), parameter.getShape());
            }
        }
    }

    /**
     * Returns what to throw if a block or a loss computes with an array that is not of its pass: an
     * array of a parameter that the block did not ask its store for is that of rank 0, or a
     * placeholder.
     *
     * @param array an array that requires a gradient
     * @return the error, or {@code null} if the array does not depend on a parameter
     */
    public @Nullable RuntimeException foreign(NDArray array) {
        // a graph of it, without which the nodes of leaves come and go
        try (Autograd.GradMode mode = Autograd.gradMode(true);
                NDArray graph = array.reshape(array.getShape())) {
            return foreign(Autograd.nodesOf(List.of(graph)));
        }
    }

    private @Nullable RuntimeException foreign(Set<Long> reached) {
        Map<Long, Parameter> held = new HashMap<>();
        for (RankParameterStore store : parameters.getStores()) {
            for (Parameter parameter : parameters.getTrained()) {
                held.put(Autograd.nodeOfLeaf(store.getHeld(parameter)), parameter);
            }
        }
        for (Parameter parameter : parameters.getCut()) { // the model's arrays are placeholders
            if (parameter.getArray().hasGradient()) {
                held.put(Autograd.nodeOfLeaf(parameter.getArray()), parameter);
            }
        }
        for (Map.Entry<Long, Parameter> each : held.entrySet()) {
            if (reached.contains(each.getKey())) {
                return Errors.argument(
                        "A block or a loss uses the array of parameter %s %s itself, which is"
                                + " not that of each rank: ask the parameter store,"
                                + " parameterStore.getValue(parameter, device, training). A"
                                + " penalty on weights is the optimizer's: optWeightDecays(...)",
                        parameters.nameOf(each.getValue()), each.getValue().getShape());
            }
        }
        return null;
    }
}
