package io.djltp.training;

import io.djltp.bridge.AutogradGraph;
import io.djltp.bridge.AutogradGraph.Node;
import io.djltp.mesh.PassTrace;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Follows a rank's slice of the features through the operations that a network does to it, up to
 * the layer or the loss that takes slices, and refuses what does not commute with the cut: a
 * softmax of a slice, or half of one, has nothing to do with that of the whole.
 *
 * <p>Elementwise operations commute. An operation that gives the axis another length or place is
 * left to who has written it, if it keeps the slice together: attention reshapes a slice of the
 * features to heads.
 */
final class SliceFlow {

    /** Keep the shape, but compute each element of a row from all. */
    private static final Set<String> MIX_A_ROW =
            Set.of(
                    "Softmax",
                    "LogSoftmax",
                    "NativeLayerNorm",
                    "NativeGroupNorm",
                    "Cumsum",
                    "Cumprod",
                    "Cummax",
                    "Cummin",
                    "Logcumsumexp",
                    "Sort",
                    "Flip",
                    "Roll",
                    "IndexSelect",
                    "Gather");

    /** Keep all elements, in their order. */
    private static final Set<String> RESHAPE =
            Set.of("View", "UnsafeView", "ReshapeAlias", "_ReshapeAlias", "Unsqueeze", "Squeeze");

    /** Take the axis elsewhere, or contract it. */
    private static final Set<String> MOVE =
            Set.of(
                    "T",
                    "Transpose",
                    "Permute",
                    "Movedim",
                    "Mm",
                    "Addmm",
                    "Bmm",
                    "Baddbmm",
                    "Addbmm");

    private final AutogradGraph graph;
    private final PassTrace trace;
    private final Map<Long, Set<Long>> consumers = new HashMap<>();

    SliceFlow(AutogradGraph graph, PassTrace trace) {
        this.graph = graph;
        this.trace = trace;
        for (Node node : graph.nodes()) {
            for (long input : node.inputs()) {
                consumers.computeIfAbsent(input, key -> new HashSet<>()).add(node.address());
            }
        }
    }

    /**
     * Checks all slices of the pass.
     *
     * @throws IllegalArgumentException if an operation does not commute with the cut
     */
    void check() {
        trace.getSlices()
                .forEach(
                        (address, slice) -> {
                            if (slice.head() == null) {
                                follow(address, slice);
                            }
                        });
    }

    private void follow(long start, PassTrace.Slice slice) {
        Deque<Long> open = new ArrayDeque<>(List.of(start));
        Set<Long> seen = new HashSet<>(open);
        while (!open.isEmpty()) {
            for (long next : consumers.getOrDefault(open.poll(), Set.of())) {
                boolean taken = trace.getBoundaries().containsKey(next);
                if (!taken && seen.add(next) && staysLast(graph.get(next), slice)) {
                    open.add(next);
                }
            }
        }
    }

    /** Returns whether the last axis of a result is still the slice. */
    private static boolean staysLast(Node node, PassTrace.Slice slice) {
        long length = slice.shape()[slice.shape().length - 1];
        String name = node.name().replaceAll("Backward\\d*$", "");
        long[] shape = node.shape();
        if (MOVE.contains(name)) {
            return false;
        }
        if (MIX_A_ROW.contains(name)) {
            throw refusal(node, name, slice);
        }
        if (shape.length > 0 && shape[shape.length - 1] == length) {
            return true;
        }
        if (RESHAPE.contains(name) && keepsTogether(shape, length)) {
            return false;
        }
        throw refusal(node, name, slice);
    }

    /** Returns whether some last axes together are the slice, such as heads and their features. */
    private static boolean keepsTogether(long[] shape, long length) {
        long product = 1;
        for (int i = shape.length - 1; i >= 0 && product < length; i--) {
            product *= shape[i];
        }
        return product == length;
    }

    private static IllegalArgumentException refusal(Node node, String name, PassTrace.Slice slice) {
        return new IllegalArgumentException(
                slice.name()
                        + " is cut over the ranks, each has a slice "
                        + Arrays.toString(slice.shape())
                        + ", and "
                        + name
                        + ", whose result is "
                        + Arrays.toString(node.shape())
                        + ", does not commute with the cut: it would be computed of each slice for"
                        + " itself. Build the layer with optGatherOutput(true), or let elementwise"
                        + " operations and a RowParallelLinear follow it");
    }
}
