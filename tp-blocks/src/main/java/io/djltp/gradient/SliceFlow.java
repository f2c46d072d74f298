package io.djltp.gradient;

import io.djltp.cut.Cut;
import io.djltp.layout.PassTrace;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.AutogradGraph.Node;

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

    /** Take the axis elsewhere. */
    static final Set<String> MOVE =
            Set.of("T", "Transpose", "Permute", "Movedim", "Swapdims", "Swapaxes");

    /** Sum products over an axis. */
    private static final Set<String> PRODUCTS = Set.of("Mm", "Addmm", "Bmm", "Baddbmm", "Addbmm");

    /** Where the slice lies in an array. */
    private enum Axis {
        LAST, // it is the last axis
        MOVED, // it is another one
        FREE // it was reshaped, to heads: what follows is left to who has written it
    }

    private final AutogradGraph graph;
    private final PassTrace trace;
    private final Map<Long, Set<Long>> consumers;
    private final Map<Long, Long> lastAxes = new HashMap<>(); // by node, the slice that it is of

    SliceFlow(AutogradGraph graph, PassTrace trace) {
        this.graph = graph;
        this.trace = trace;
        consumers = graph.consumers();
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
        Deque<Map.Entry<Long, Axis>> open = new ArrayDeque<>(List.of(Map.entry(start, Axis.LAST)));
        Set<Map.Entry<Long, Axis>> seen = new HashSet<>(open);
        while (!open.isEmpty()) {
            Map.Entry<Long, Axis> at = open.poll();
            for (long next : consumers.getOrDefault(at.getKey(), Set.of())) {
                if (isTaken(next)) {
                    if (at.getValue() == Axis.LAST) {
                        checkTaken(start, next, slice);
                    }
                    continue;
                }
                Axis axis = axisAfter(graph.get(next), at.getValue(), slice);
                if (axis == Axis.LAST) {
                    Long other = lastAxes.putIfAbsent(next, start);
                    checkCuts(start, other == null ? start : other, slice);
                }
                Map.Entry<Long, Axis> step = Map.entry(next, axis);
                if (axis != Axis.FREE && seen.add(step)) {
                    open.add(step);
                }
            }
        }
    }

    /** Returns whether a layer or a loss takes the slice: by itself, or as the end of a product. */
    private boolean isTaken(long node) {
        Set<Long> ends = trace.getBoundaries().keySet();
        return ends.contains(node)
                || PRODUCTS.contains(graph.get(node).operation())
                        && consumers.getOrDefault(node, Set.of()).stream().anyMatch(ends::contains);
    }

    /** A product, and what its layer computed of it, have the cut that the layer needs. */
    private void checkTaken(long start, long node, PassTrace.Slice slice) {
        checkCuts(start, node, slice);
        for (long end : consumers.getOrDefault(node, Set.of())) {
            if (!trace.getSlices().containsKey(end)) {
                checkCuts(start, end, slice);
            }
        }
    }

    /** Of another length, the features are others, and it is left to who has written it. */
    private void checkCuts(long start, long other, PassTrace.Slice slice) {
        Cut cut = trace.getCuts().get(start);
        Cut needed = trace.getCuts().get(other);
        if (cut != null
                && needed != null
                && cut.getLength() == needed.getLength()
                && !cut.equals(needed)) {
            throw new IllegalArgumentException(
                    slice.name()
                            + " is cut over the ranks as "
                            + cut
                            + ", and is put together with features, or taken by a layer, that are"
                            + " cut as "
                            + needed
                            + ": give both the same cut, by optShardingStrategy, or build the"
                            + " layer with optGatherOutput(true)");
        }
    }

    /** Returns where the slice lies in the result of an operation. */
    private static Axis axisAfter(Node node, Axis axis, PassTrace.Slice slice) {
        long length = slice.shape()[slice.shape().length - 1];
        String name = node.operation();
        long[] shape = node.shape();
        boolean last = shape.length > 0 && shape[shape.length - 1] == length;
        if (PRODUCTS.contains(name) && (axis == Axis.MOVED || !last)) {
            throw refusal(node, name, slice); // a sum over the slice, and not over the whole
        }
        if (axis == Axis.MOVED || MOVE.contains(name)) {
            return MOVE.contains(name) && last && axis == Axis.MOVED ? Axis.LAST : Axis.MOVED;
        }
        if (MIX_A_ROW.contains(name)) {
            throw refusal(node, name, slice);
        }
        if (last) {
            return Axis.LAST;
        }
        if (RESHAPE.contains(name) && keepsTogether(shape, length)) {
            return Axis.FREE;
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
