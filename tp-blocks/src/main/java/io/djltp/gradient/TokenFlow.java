package io.djltp.gradient;

import io.djltp.layout.PassTrace;
import io.djltp.layout.TokenCut;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.AutogradGraph.Node;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Follows a rank's tokens through the operations of a sequence-parallel region, from where it
 * begins to the layers that gather them, and refuses what mixes tokens or takes their axis
 * elsewhere: attention over a rank's tokens has nothing to do with attention over all.
 *
 * <p>An operation may keep the axes up to that of the tokens, or, as linear layers do, put them
 * together to one axis of all tokens of the rank's rows, and take them apart again.
 */
final class TokenFlow {

    /** May keep the shape, but compute a token from others: over which axis, the graph hides. */
    private static final Set<String> MAY_MIX =
            Set.of(
                    "Softmax",
                    "LogSoftmax",
                    "Cumsum",
                    "Cumprod",
                    "Cummax",
                    "Cummin",
                    "Logcumsumexp",
                    "Sort",
                    "Flip",
                    "Roll",
                    "IndexSelect",
                    "Gather",
                    "NativeBatchNorm",
                    "CudnnBatchNorm",
                    "NativeGroupNorm",
                    "Convolution",
                    "ScaledDotProductFlashAttentionForCpu",
                    "ScaledDotProductEfficientAttention",
                    "ScaledDotProductFlashAttention");

    /** Sum over an axis, be it of length 1. */
    private static final Set<String> REDUCE =
            Set.of(
                    "Mean",
                    "Sum",
                    "Max",
                    "Min",
                    "Amax",
                    "Amin",
                    "Prod",
                    "Norm",
                    "LinalgVectorNorm",
                    "Std",
                    "Var",
                    "Logsumexp");

    /** Take an axis elsewhere. */
    private static final Set<String> MOVE =
            Set.of("T", "Transpose", "Permute", "Movedim", "Swapdims", "Swapaxes");

    /** Where the tokens lie in an array. */
    private enum Place {
        AXIS, // the axes up to that of the tokens are as they were
        ROWS // they are one axis, the first
    }

    /** A node, and where the tokens may lie: of axes of length 1, the shapes leave both open. */
    private record At(long node, Set<Place> places) {}

    private final AutogradGraph graph;
    private final PassTrace trace;
    private final Map<Long, TokenCut> cuts = new HashMap<>(); // of the nodes that were met

    TokenFlow(AutogradGraph graph, PassTrace trace) {
        this.graph = graph;
        this.trace = trace;
    }

    /**
     * Checks all sequence-parallel regions of the pass.
     *
     * @throws IllegalArgumentException if tokens are mixed
     */
    void check() {
        trace.getTokens()
                .forEach(
                        (address, cut) -> {
                            Node start = graph.get(address);
                            if (start != null) { // else the loss does not depend on it
                                long[] axes = Arrays.copyOf(start.shape(), cut.axis() + 1);
                                follow(address, axes, cut);
                            }
                        });
    }

    private void follow(long start, long[] axes, TokenCut cut) {
        Deque<At> open = new ArrayDeque<>();
        open.add(new At(start, EnumSet.of(Place.AXIS)));
        Set<At> seen = new HashSet<>(open);
        while (!open.isEmpty()) {
            At at = open.poll();
            for (long next : graph.consumers().getOrDefault(at.node(), Set.of())) {
                boolean ends = trace.getBoundaries().containsKey(next);
                if (ends && !trace.getTokens().containsKey(next)) {
                    if (!at.places().contains(Place.AXIS)) {
                        throw refusal(graph.get(at.node()), axes);
                    }
                    continue; // it gathers the tokens
                }
                Set<Place> places =
                        placesAfter(graph.get(at.node()), graph.get(next), at.places(), axes);
                TokenCut other = cuts.putIfAbsent(next, cut);
                if (other != null && !other.equals(cut)) {
                    throw mixed(graph.get(next));
                }
                At step = new At(next, places);
                if (seen.add(step)) {
                    open.add(step);
                }
            }
        }
    }

    /** Returns where the tokens may lie in the result of an operation. */
    private static Set<Place> placesAfter(Node input, Node node, Set<Place> places, long[] axes) {
        String name = node.operation();
        long[] shape = node.shape();
        boolean reduced = REDUCE.contains(name) && Arrays.equals(shape, input.shape());
        boolean unknown = !SliceRules.isKnown(node) || SliceRules.mixesLastAxes(name);
        if (MAY_MIX.contains(name) || reduced || MOVE.contains(name) || unknown) {
            throw refusal(node, axes);
        }
        boolean same =
                shape.length >= axes.length
                        && Arrays.equals(Arrays.copyOf(shape, axes.length), axes);
        boolean rows =
                shape.length > 0 && shape[0] == Arrays.stream(axes).reduce(1, (a, b) -> a * b);
        Set<Place> after = EnumSet.noneOf(Place.class);
        if (places.contains(Place.AXIS)) {
            if (same) {
                after.add(Place.AXIS);
            }
            // the other axes stay: [4, 1, 1] to [4, 1] are the rows of a linear layer
            int joined = input.shape().length - axes.length + 1;
            if (rows && isReshape(name) && (!same || shape.length == joined)) {
                after.add(Place.ROWS);
            }
        }
        if (places.contains(Place.ROWS) && rows) {
            after.add(same && shape.length > input.shape().length ? Place.AXIS : Place.ROWS);
        } else if (places.contains(Place.ROWS) && same) {
            after.add(Place.AXIS);
        }
        if (after.isEmpty()) {
            throw refusal(node, axes);
        }
        return after;
    }

    private static boolean isReshape(String name) {
        return name.contains("View") || name.contains("Reshape");
    }

    /** Returns the error of an array of some tokens that meets one of others, or of all. */
    static IllegalArgumentException mixed(Node node) {
        return new IllegalArgumentException(
                "An array "
                        + (node == null ? "" : Arrays.toString(node.shape()) + " ")
                        + "is put together with another one, and of one of the two a rank has its"
                        + " tokens only, of the other all, or other ones. Join both before the"
                        + " SequenceScatter, or both between it and the SequenceGather (a"
                        + " RowParallelLinear leaves a rank's tokens with"
                        + " optSequenceParallel(true)), or both behind it");
    }

    private static IllegalArgumentException refusal(Node node, long[] axes) {
        return new IllegalArgumentException(
                "In a sequence-parallel region each rank has its tokens only, here the last of the"
                        + " axes "
                        + Arrays.toString(axes)
                        + ", and "
                        + (node == null ? "an operation" : node.operation())
                        + (node == null ? "" : ", whose result is " + Arrays.toString(node.shape()))
                        + ", may compute a token from others or takes the axis elsewhere. Let"
                        + " ColumnParallelLinear with optSequenceParallel(true) gather the tokens"
                        + " before it, or a SequenceGather");
    }
}
