package io.djltp.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Parameter;

import io.djltp.layout.DeferredHead;
import io.djltp.layout.PartAnalysis;
import io.djltp.layout.PassTrace;
import io.djltp.layout.PassTrace.Boundary;
import io.djltp.layout.Region;
import io.djltp.parameters.ParallelParameters;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.RankPool;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.TensorView;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
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
public final class GradientFlow {

    private final ParallelParameters parameters;
    private final ForeignArrays foreign;
    private final boolean overlaid;
    private final List<Map<Long, Map<Parameter, PartialAxes>>> known = new ArrayList<>(); // by rank
    private final List<PartFlow> parts = new ArrayList<>(); // by rank
    private final WatchedPasses watched;

    /**
     * Creates the analysis of the passes of a training.
     *
     * @param parameters what the ranks hold
     * @param ranks the ranks
     */
    public GradientFlow(ParallelParameters parameters, RankPool ranks) {
        this.parameters = parameters;
        foreign = new ForeignArrays(parameters);
        watched = new WatchedPasses(parameters);
        overlaid = ranks.getContext(0).getMesh().isOverlaid();
        for (int i = 0; i < ranks.size(); i++) {
            known.add(new HashMap<>());
            parts.add(new PartFlow(parameters, foreign));
        }
    }

    /**
     * Returns which passes have been watched.
     *
     * @return the passes
     */
    public WatchedPasses getWatched() {
        return watched;
    }

    /**
     * Returns what looks at parts of a rank's passes whose graph is dropped.
     *
     * @param context the rank
     * @return the analysis
     */
    public PartAnalysis getPartAnalysis(ParallelContext context) {
        PartFlow flow = parts.get(context.getLocalIndex());
        return (trace, result, root) -> flow.find(context, trace, result, root);
    }

    /**
     * Returns for each parameter that a loss depends on over which axes the rank's gradient of it
     * is a summand.
     *
     * @param context the rank
     * @param loss the loss
     * @param root the region that the loss was computed in
     * @return the parameters; empty with one rank
     * @throws IllegalArgumentException if the network cannot be computed by ranks
     */
    public Map<Parameter, PartialAxes> find(ParallelContext context, NDArray loss, Region root) {
        PassTrace trace = context.getPass().getTrace();
        boolean alone = context.getSize() == 1;
        if (alone && context.getParticipants().size() == 0) {
            return Map.of();
        }
        Map<Long, Map<Parameter, PartialAxes>> before = known.get(context.getLocalIndex());
        long key = 31 * trace.getStructure(loss) + root.index();
        key = 31 * key + context.getParticipants().size(); // a new one may own what was used
        Map<Parameter, PartialAxes> found = before.get(key);
        if (found == null) {
            Map<Parameter, PartialAxes> analysed = analyse(context, loss, root);
            found = before.values().stream().filter(analysed::equals).findAny().orElse(analysed);
            before.put(key, found); // one map for passes of many shapes
        }
        return found;
    }

    private Map<Parameter, PartialAxes> analyse(
            ParallelContext context, NDArray loss, Region root) {
        PassTrace trace = context.getPass().getTrace();
        Map<Long, Set<Region>> regions =
                check(trace, new NDList(loss), List.of(root), rowsOf(context));
        Map<Parameter, PartialAxes> partial = new HashMap<>();
        HeadUses.check(trace, regions.keySet());
        foreign.check(context, regions.keySet());
        Map<Long, Parameter> leaves = foreign.leavesOf(parameters.getStore(context));
        PartFlow.usesOf(leaves, regions, trace)
                .forEach((key, used) -> partial.put(key, partialAxes(key, used)));
        checkOneUse(context, partial.keySet());
        addUses(trace.getLeaves(), regions, partial);
        return partial;
    }

    /**
     * Checks that a loss is not computed from arrays that are not those of the rank.
     *
     * @param context the rank
     * @param loss the loss of an evaluation
     * @throws IllegalArgumentException if it is
     */
    public void checkArrays(ParallelContext context, NDArray loss) {
        Set<Long> reached = new HashSet<>();
        AutogradGraph.of(List.of(loss)).nodes().forEach(node -> reached.add(node.address()));
        if (!reached.isEmpty()) {
            foreign.check(context, reached);
        }
    }

    private void addUses(
            Map<Long, Parameter> leaves,
            Map<Long, Set<Region>> regions,
            Map<Parameter, PartialAxes> partial) {
        leaves.forEach(
                (address, parameter) -> {
                    Set<Region> used = regions.get(address);
                    if (used != null) {
                        partial.put(parameter, partialAxes(parameter, used));
                    }
                });
    }

    /**
     * Checks that the outputs of a network, or its loss, can be computed by ranks.
     *
     * @param context the rank
     * @param results what was computed
     * @param roots the region of each
     * @throws IllegalArgumentException if they cannot
     */
    public void check(ParallelContext context, NDList results, List<Region> roots) {
        PassTrace trace = context.getPass().getTrace();
        NDList all = new NDList(results);
        List<Region> regions = new ArrayList<>(roots);
        trace.getTaken()
                .forEach(
                        (taken, region) -> {
                            all.add(taken);
                            regions.add(region);
                        });
        trace.getTaken().clear();
        check(trace, all, regions, rowsOf(context));
    }

    /** One that the batch leaves without a row computes with another's. */
    private static long rowsOf(ParallelContext context) {
        return Math.max(1, context.getPass().getRows());
    }

    static Map<Long, Set<Region>> check(
            PassTrace trace, NDList results, List<Region> roots, long rows) {
        AutogradGraph graph = AutogradGraph.of(results);
        Map<Long, Set<Region>> regions = new HashMap<>();
        Deque<Map.Entry<Long, Region>> open = new ArrayDeque<>();
        Set<Long> ofRows = new HashSet<>(); // results
        for (int i = 0; i < roots.size(); i++) {
            if (TensorView.of(results.get(i)).requiresGradient()) {
                long node = AutogradGraph.nodeOf(results.get(i));
                long leaf = node == 0 ? AutogradGraph.nodeOfLeaf(results.get(i)) : node;
                open.add(Map.entry(leaf, roots.get(i)));
                if (roots.get(i).isRowsCut()) {
                    ofRows.add(leaf);
                }
            }
        }
        while (!open.isEmpty()) {
            Map.Entry<Long, Region> at = open.poll();
            long address = at.getKey();
            Region region = at.getValue();
            if (!regions.computeIfAbsent(address, key -> new HashSet<>()).add(region)) {
                continue;
            }
            AutogradGraph.Node node = graph.get(address);
            Region below = below(trace, address, node, region);
            if (node != null && below != null) {
                node.inputs().forEach(input -> open.add(Map.entry(input, below)));
            }
        }
        new SliceFlow(graph, trace).check();
        new TokenFlow(graph, trace).check();
        new RowFlow(graph, trace, rows).check(ofRows);
        return regions;
    }

    /** Returns the region of an operation's inputs, or {@code null} if the gradient ends there. */
    private static Region below(
            PassTrace trace, long address, AutogradGraph.Node node, Region region) {
        PassTrace.Boundary boundary = trace.getBoundaries().get(address);
        PassTrace.Slice slice = trace.getSlices().get(address);
        if (slice != null && !region.isShard()) {
            throw leaked(slice);
        }
        if (boundary == null) {
            return region;
        }
        if (region.equals(boundary.above())) {
            return boundary.below();
        }
        if (trace.getInputs().contains(address)
                && region.with(boundary.above().features()).equals(boundary.above())) {
            return null;
        }
        throw region.tokens() == boundary.above().tokens()
                ? mixed(node, region, boundary.above())
                : TokenFlow.mixed(node);
    }

    private static IllegalArgumentException leaked(PassTrace.Slice slice) {
        String remedy =
                slice.head() == null
                        ? "cut over the ranks, each has a slice "
                                + Arrays.toString(slice.shape())
                                + ", and it is used as though it was whole, by an operation or the"
                                + " loss. Use VocabParallelCrossEntropyLoss, let a"
                                + " RowParallelLinear follow, or build the layer with"
                                + " optGatherOutput(true)"
                        : "never computed, for its loss is fused, and something else than"
                                + " VocabParallelCrossEntropyLoss uses it. Build the head with"
                                + " optFusedLoss(false)";
        return new IllegalArgumentException(slice.name() + " is " + remedy);
    }

    private static IllegalArgumentException mixed(
            AutogradGraph.Node node, Region region, Region other) {
        boolean rows = region.rows() != other.rows();
        return new IllegalArgumentException(
                "An array "
                        + (node == null ? "" : Arrays.toString(node.shape()) + " ")
                        + "is put together with another one that lies otherwise over the ranks: "
                        + (rows
                                ? (region.isRowsCut() ? "the other one" : "one of the two")
                                        + " has the rows of a rank only. What branches off before a"
                                        + " layer with optBatchShardedInput(true) can be joined"
                                        + " only before it, or after a RowParallelLinear with"
                                        + " optBatchShardedOutput(true); TENSOR mode has no such"
                                        + " limit"
                                : "a rank has its slice of the features, or a summand, of one of"
                                        + " the two, and the whole of the other. Build the layer of"
                                        + " the slice with optGatherOutput(true), or join the two"
                                        + " behind its RowParallelLinear"));
    }

    /** Of axes that lie over the same ranks, one is as good as the other. */
    private PartialAxes partialAxes(Parameter parameter, Set<Region> used) {
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
            throw new IllegalArgumentException(
                    "Parameter "
                            + parameters.nameOf(parameter)
                            + " "
                            + parameter.getShape()
                            + " is used where all ranks compute the same, and where each computes"
                            + " its part (its rows or its slice of the features): of the first use"
                            + " a rank has the whole gradient, of the second a summand. Give the"
                            + " two uses a block each. If one of the uses is a penalty in the loss,"
                            + " let the optimizer do it: optWeightDecays(...). If a branch of the"
                            + " body is joined behind a layer with optBatchShardedInput(true), join"
                            + " it before the layer");
        }
        return axes.iterator().next();
    }

    /** A parameter that a block updates itself has no gradient for another use. */
    private void checkOneUse(ParallelContext context, Set<Parameter> differentiated) {
        for (Parameter parameter : context.getParticipants().getParameters()) {
            if (differentiated.contains(parameter)) {
                throw new IllegalArgumentException(
                        "Parameter "
                                + parameters.nameOf(parameter)
                                + " "
                                + parameter.getShape()
                                + " is shared by a block that updates it itself (such as a"
                                + " ClassificationHead or an EmbeddingBag) and by another one,"
                                + " whose gradient would be lost. Build the head with"
                                + " optFusedLoss(false), use DJL's embedding, or give each block a"
                                + " parameter of its own");
            }
        }
    }

    /** Refuses a loss of two outputs of one fused head, which keeps the gradient of one. */
    private static final class HeadUses {

        private HeadUses() {}

        /**
         * Checks the graph of a loss.
         *
         * @param trace what the pass has left behind
         * @param reached the nodes that the loss was computed of
         * @throws IllegalArgumentException if it was computed of two outputs of one head
         */
        static void check(PassTrace trace, Set<Long> reached) {
            Set<DeferredHead> used = Collections.newSetFromMap(new IdentityHashMap<>());
            trace.getSlices()
                    .forEach(
                            (address, slice) -> {
                                Boundary boundary = trace.getBoundaries().get(address);
                                // else the rows of the same output, gathered
                                boolean output =
                                        boundary != null
                                                && boundary.above().rows()
                                                        == boundary.below().rows();
                                boolean head = slice.head() != null && reached.contains(address);
                                if (head && output && !used.add(slice.head())) {
                                    throw twice(slice.head());
                                }
                            });
        }

        private static IllegalArgumentException twice(DeferredHead head) {
            return new IllegalArgumentException(
                    "The loss takes two outputs of the fused head with the weight "
                            + head.getShape()
                            + ", which keeps the gradient of one. Build it with optFusedLoss(false), or"
                            + " put the features together before the head, as rows that lie together:"
                            + " x.stack(y, 1)");
        }
    }
}
