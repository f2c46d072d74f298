package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.bridge.AutogradGraph;
import io.djltp.mesh.ForwardPass;
import io.djltp.mesh.FusedHead;
import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.ParallelMode;
import io.djltp.mesh.Region;
import io.djltp.sharding.RankParameterStore;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Finds out from the graph of a loss in which regions each parameter was used. In a region where a
 * rank computes with its rows, or its slice of the features, it gets a summand of the gradient of
 * what it has a replica of; where all compute the same, it gets the whole.
 *
 * <p>From the loss down, a node is in the region of what was computed of it, until one is met that
 * a layer has noted as the end of its region. A pass that has asked for the same parameters in the
 * same order as an earlier one is not looked at again.
 */
final class GradientFlow {

    private final ParallelParameters parameters;
    private final List<Map<Long, Map<Parameter, Boolean>>> known = new ArrayList<>(); // by rank

    GradientFlow(ParallelParameters parameters, int ranks) {
        this.parameters = parameters;
        for (int i = 0; i < ranks; i++) {
            known.add(new HashMap<>());
        }
    }

    /**
     * Returns for each parameter that a loss depends on whether the rank's gradient of it is a
     * summand.
     *
     * @param context the rank
     * @param loss the loss
     * @param root the region that the loss was computed in
     * @return the parameters; empty where gradients are summed whatever was executed
     * @throws IllegalArgumentException if the network cannot be computed by ranks
     */
    Map<Parameter, Boolean> find(ParallelContext context, NDArray loss, Region root) {
        ForwardPass pass = context.getPass();
        boolean cut = context.getMode() != ParallelMode.DATA && context.getSize() > 1;
        if (!cut && pass.getHeads().isEmpty() && pass.getLeaves().isEmpty()) {
            return Map.of();
        }
        Map<Long, Map<Parameter, Boolean>> before = known.get(context.getLocalIndex());
        long key = 31 * pass.getStructure() + root.ordinal();
        Map<Parameter, Boolean> found = before.get(key);
        if (found == null) {
            found = analyse(context, AutogradGraph.of(loss), root);
            before.put(key, found);
        }
        return found;
    }

    private Map<Parameter, Boolean> analyse(
            ParallelContext context, AutogradGraph graph, Region root) {
        ForwardPass pass = context.getPass();
        Map<Long, Set<Region>> regions = regions(graph, pass, root);
        new SliceFlow(graph, pass).check();
        Map<Parameter, Boolean> partial = new HashMap<>();
        leaves(context)
                .forEach(
                        (address, parameter) -> {
                            Set<Region> used = regions.get(address);
                            if (used != null) {
                                partial.put(parameter, isPartial(parameter, used));
                            }
                        });
        checkOneUse(pass, partial.keySet());
        pass.getLeaves()
                .forEach(
                        (address, parameter) -> {
                            Set<Region> used = regions.get(address);
                            if (used != null) {
                                partial.put(parameter, isPartial(parameter, used));
                            }
                        });
        checkForeignLeaves(context, regions.keySet());
        return partial;
    }

    private static Map<Long, Set<Region>> regions(
            AutogradGraph graph, ForwardPass pass, Region root) {
        Map<Long, Set<Region>> regions = new HashMap<>();
        Deque<Map.Entry<Long, Region>> open = new ArrayDeque<>();
        if (graph.root() != 0) {
            open.add(Map.entry(graph.root(), root));
        }
        while (!open.isEmpty()) {
            Map.Entry<Long, Region> at = open.poll();
            long address = at.getKey();
            Region region = at.getValue();
            if (!regions.computeIfAbsent(address, key -> EnumSet.noneOf(Region.class))
                    .add(region)) {
                continue;
            }
            ForwardPass.Slice slice = pass.getSlices().get(address);
            if (slice != null && region != Region.SHARDED) {
                throw leaked(slice);
            }
            Region below = pass.getBoundaries().getOrDefault(address, region);
            graph.get(address).inputs().forEach(input -> open.add(Map.entry(input, below)));
        }
        return regions;
    }

    private static IllegalArgumentException leaked(ForwardPass.Slice slice) {
        String remedy =
                slice.head() == null
                        ? "cut over the ranks, each has a slice "
                                + Arrays.toString(slice.shape())
                                + ", and it is used as though it was whole, by an operation or the"
                                + " loss. Use VocabParallelCrossEntropyLoss, let a"
                                + " RowParallelLinear follow, or build the layer with"
                                + " optGatherOutput(true)"
                        : "never computed, for it has optFusedLoss(true), and something else than"
                                + " VocabParallelCrossEntropyLoss uses it. Build the layer without"
                                + " optFusedLoss";
        return new IllegalArgumentException("The output of " + slice.layer() + " is " + remedy);
    }

    private boolean isPartial(Parameter parameter, Set<Region> used) {
        boolean whole = used.contains(Region.WHOLE);
        if (whole && used.size() > 1) {
            throw new IllegalArgumentException(
                    "Parameter "
                            + parameters.nameOf(parameter)
                            + " "
                            + parameter.getShape()
                            + " is used where all ranks compute the same, and where each computes"
                            + " its part (its rows or its slice of the features): of the first use"
                            + " a rank has the whole gradient, of the second a summand. Give the"
                            + " two uses a block each");
        }
        return !whole;
    }

    /** A head with its loss in one, or a table updated by rows, has no gradient for another use. */
    private void checkOneUse(ForwardPass pass, Set<Parameter> differentiated) {
        List<Parameter> own = new ArrayList<>(pass.getLeaves().values());
        for (FusedHead head : pass.getHeads()) {
            own.add(head.getWeight());
            own.add(head.getBias());
        }
        for (Parameter parameter : own) {
            if (differentiated.contains(parameter)) {
                throw new IllegalArgumentException(
                        "Parameter "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " is shared by a block that updates it itself (a layer with"
                                + " optFusedLoss(true), or an EmbeddingBag) and by another one,"
                                + " whose gradient would be lost. Build the layer without"
                                + " optFusedLoss, use DJL's embedding, or give each block a"
                                + " parameter of its own");
            }
        }
    }

    private Map<Long, Parameter> leaves(ParallelContext context) {
        return leaves(parameters.getStore(context));
    }

    private Map<Long, Parameter> leaves(RankParameterStore store) {
        Map<Long, Parameter> leaves = new HashMap<>();
        for (Parameter parameter : parameters.getTrained()) {
            leaves.put(AutogradGraph.nodeOfLeaf(store.getValue(parameter, null, true)), parameter);
        }
        return leaves;
    }

    /** A block that does not ask its parameter store works on the values of rank 0. */
    private void checkForeignLeaves(ParallelContext context, Set<Long> reached) {
        if (context.getLocalIndex() == 0) {
            return;
        }
        leaves(parameters.getStores().get(0))
                .forEach(
                        (address, parameter) -> {
                            if (reached.contains(address)) {
                                throw new IllegalArgumentException(
                                        "A block or a loss uses the array of parameter "
                                                + parameters.nameOf(parameter)
                                                + " "
                                                + parameter.getShape()
                                                + " itself, which is that of rank 0: ask the"
                                                + " parameter store,"
                                                + " parameterStore.getValue(parameter, device,"
                                                + " training). A penalty on weights is the"
                                                + " optimizer's: optWeightDecays(...)");
                            }
                        });
    }
}
