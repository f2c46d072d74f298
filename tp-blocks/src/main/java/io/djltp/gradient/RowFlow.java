package io.djltp.gradient;

import io.djltp.layout.PassTrace;
import io.djltp.layout.PassTrace.Boundary;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.AutogradGraph.Node;
import io.djltp.torch.OperationAxes;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Follows a rank's rows of the batch through the operations of a network, and refuses what puts
 * them in another order along their axis, and leaves them so up to an output, or to a layer that
 * gathers the batch: of [x; y] the ranks' parts, one behind the other, are not that of the whole.
 *
 * <p>Rows that are joined to be computed together, and taken apart again, are fine. What computes a
 * row from others, as a sum over them does, is not looked for.
 */
final class RowFlow {

    private static final Set<String> REVERSE = Set.of("Flip", "Roll");

    private static final long IN_ORDER = 0; // no node has this address

    private final AutogradGraph graph;
    private final PassTrace trace;
    private final long rows;

    /** By node, and by the operation that has put the rows in another order, where they lie. */
    private final Map<Long, Map<Long, Set<SlicePlace>>> places = new HashMap<>();

    /**
     * Creates the check of a pass.
     *
     * @param rows the rows that this rank computes with
     */
    RowFlow(AutogradGraph graph, PassTrace trace, long rows) {
        this.graph = graph;
        this.trace = trace;
        this.rows = rows;
    }

    /**
     * Checks the pass, if the batch is cut.
     *
     * @param outputs the nodes of outputs of which a rank has its rows
     * @throws IllegalArgumentException if rows come there in another order
     */
    void check(Set<Long> outputs) {
        if (trace.getInputs().isEmpty()) {
            return;
        }
        for (Node node : graph.fromTheLeaves()) {
            Boundary boundary = trace.getBoundaries().get(node.address());
            boolean cutBelow = boundary != null && boundary.below().isRowsCut();
            boolean cutAbove = boundary != null && boundary.above().isRowsCut();
            if (isStart(node) || cutAbove && !cutBelow) {
                start(node);
                continue;
            }
            Map<Long, Set<SlicePlace>> found = new HashMap<>();
            for (Node.Use use : node.edges()) {
                if (cutBelow && !cutAbove) {
                    checkOrder(places.getOrDefault(use.source(), Map.of()));
                } else {
                    follow(node, use, found);
                }
            }
            places.put(node.address(), found);
            if (trace.getMasked().contains(node.address())) {
                checkMask(node, found.getOrDefault(IN_ORDER, Set.of()));
            }
            if (outputs.contains(node.address())) {
                checkOrder(found);
            }
        }
    }

    /** Ids have no gradient: they are in the graph from where they are looked up. */
    private boolean isStart(Node node) {
        long[] shape = node.shape();
        boolean lookup = "Embedding".equals(node.operation()) && shape.length > 2;
        return trace.getInputs().contains(node.address()) || lookup && shape[0] == rows;
    }

    private void start(Node node) {
        long[] shape = node.shape();
        if (shape.length > 0) {
            SlicePlace place = new SlicePlace(0, 1, shape[0], 1, 1);
            places.put(node.address(), Map.of(IN_ORDER, Set.of(place)));
        }
    }

    private void follow(Node node, Node.Use use, Map<Long, Set<SlicePlace>> found) {
        long[] from = graph.get(use.source()).shapes()[use.result()];
        places.getOrDefault(use.source(), Map.of())
                .forEach(
                        (order, before) -> {
                            boolean first = order == IN_ORDER;
                            boolean reordered = isReordered(node, from, before, first);
                            long after = reordered ? node.address() : order;
                            before.stream()
                                    .flatMap(place -> after(node, use, from, place, reordered))
                                    .filter(place -> place.unit() == 1) // else divided
                                    .forEach(place -> add(found, after, place));
                        });
    }

    private static Stream<SlicePlace> after(
            Node node, Node.Use use, long[] from, SlicePlace place, boolean reordered) {
        if (reordered) {
            return Stream.of(new SlicePlace(place.axis(), 1, node.shape()[place.axis()], 1, 1));
        }
        return SliceRules.after(node, use.operand(), from, place).stream();
    }

    private static void add(Map<Long, Set<SlicePlace>> found, long order, SlicePlace place) {
        found.computeIfAbsent(order, key -> new HashSet<>()).add(place);
    }

    /** What is turned round a second time is not followed: it may be in order again. */
    private static boolean isReordered(
            Node node, long[] from, Set<SlicePlace> places, boolean first) {
        boolean joins = "Cat".equals(node.operation());
        if (places.isEmpty() || !joins && !(first && REVERSE.contains(node.operation()))) {
            return false;
        }
        int[] axes = OperationAxes.of(node, from.length);
        if (axes == null || joins && node.shape()[axes[0]] == from[axes[0]]) {
            return false;
        }
        Set<Integer> over = Arrays.stream(axes).boxed().collect(Collectors.toSet());
        return places.stream().allMatch(place -> over.contains(place.axis()));
    }

    private void checkOrder(Map<Long, Set<SlicePlace>> found) {
        found.forEach(
                (order, at) -> {
                    if (order != IN_ORDER && at.stream().allMatch(place -> place.axis() == 0)) {
                        throw refusal(graph.get(order));
                    }
                });
    }

    /** A mask of dropout is made for rows that lie one behind the other. */
    private void checkMask(Node node, Set<SlicePlace> rowsAt) {
        if (!rowsAt.isEmpty()
                && rowsAt.stream().noneMatch(place -> place.axis() == 0 && place.outer() == 1)) {
            throw new IllegalArgumentException(
                    "The batch is cut over the ranks, here "
                            + rows
                            + " rows, and dropout takes "
                            + Arrays.toString(node.shape())
                            + ", where the rows are not axis 0: its mask would depend on the number"
                            + " of ranks. Put the dropout before the swapAxes or the transpose that"
                            + " moves them, or behind that which takes them back; or use TENSOR"
                            + " mode");
        }
    }

    private IllegalArgumentException refusal(Node node) {
        return new IllegalArgumentException(
                "The batch is cut over the ranks, here "
                        + rows
                        + " rows, and "
                        + node.operation()
                        + ", whose result is "
                        + Arrays.toString(node.shape())
                        + ", puts rows in another order along their axis: what the ranks have of"
                        + " it, one behind the other, is not that of the whole batch. Let what"
                        + " becomes of a row lie together: not x.concat(y, 0), but x.stack(y, 1)"
                        + " and then reshape(-1, ..), with labels in that order, or an output for"
                        + " each; or use TENSOR mode");
    }
}
