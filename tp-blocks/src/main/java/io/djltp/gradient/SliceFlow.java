package io.djltp.gradient;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.PassTrace;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.AutogradGraph.Node;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * Follows a rank's slice of the features through the operations that a network does to it, up to
 * the layer or the loss that takes slices, and refuses what does not commute with the cut: a
 * softmax of a slice, or half of one, has nothing to do with that of the whole.
 *
 * <p>The features may be divided to groups, such as heads, moved to another axis, put together with
 * others, and taken apart again ({@link SlicePlace}); over other axes anything may be computed.
 * They have to be the last axis again, in their order, where they are taken.
 */
final class SliceFlow {

    private final AutogradGraph graph;
    private final PassTrace trace;
    private final Map<Long, Set<Long>> consumers;

    /** By node, and by the slice that it was computed of, where the features may lie. */
    private final Map<Long, Map<Long, Set<SlicePlace>>> places = new HashMap<>();

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
                            long[] shape = slice.shape();
                            if (slice.head() == null && shape[shape.length - 1] > 0) {
                                places.put(
                                        address, Map.of(address, Set.of(SlicePlace.last(shape))));
                            }
                        });
        if (!places.isEmpty()) {
            graph.fromTheLeaves().forEach(this::check);
        }
    }

    private void check(Node node) {
        Map<Long, Set<SlicePlace>> found = new HashMap<>();
        boolean taken = isTaken(node);
        for (Node.Use use : node.edges()) {
            long[] from = graph.get(use.source()).shapes()[use.result()];
            places.getOrDefault(use.source(), Map.of())
                    .forEach(
                            (start, before) -> {
                                if (taken) {
                                    checkOrder(start, from, before);
                                    checkTaken(start, before, node);
                                } else {
                                    Set<SlicePlace> after = after(start, node, use, from, before);
                                    after.removeIf(place -> !isAlike(place, found.get(start)));
                                    if (after.isEmpty()) {
                                        throw refusal(node, slice(start));
                                    }
                                    found.put(start, after);
                                }
                            });
        }
        if (!found.isEmpty()) {
            found.forEach((start, each) -> checkTogether(start, node, found));
            places.putIfAbsent(node.address(), found);
            found.forEach((start, each) -> checkMask(start, node, each));
            if (!consumers.containsKey(node.address())) {
                found.forEach((start, each) -> checkOrder(start, node.shape(), each));
            }
        }
    }

    private PassTrace.Slice slice(long start) {
        return trace.getSlices().get(start);
    }

    private Set<SlicePlace> after(
            long start, Node node, Node.Use use, long[] from, Set<SlicePlace> before) {
        Set<SlicePlace> after = new HashSet<>();
        Cut cut = trace.getCuts().get(start);
        for (SlicePlace place : before) {
            List<SlicePlace> all = SliceRules.after(node, use.operand(), from, place);
            if (all.isEmpty() && isStacked(cut)) {
                all = SliceRules.partOf(node, from, place);
            }
            for (SlicePlace next : all) {
                if (cut == null || hasWholeGroups(cut, next.unit())) {
                    after.add(next);
                    if (next.isAllOf(place)) {
                        break; // no rank shares the group
                    }
                }
            }
        }
        return after;
    }

    /** Returns whether each rank has parts of several things, which may be taken apart. */
    private static boolean isStacked(Cut cut) {
        return cut != null
                && IntStream.range(0, cut.getRanks())
                        .anyMatch(rank -> cut.getRanges(rank).size() > 1);
    }

    /** Returns whether no group of features, such as a head, is divided between ranks. */
    private static boolean hasWholeGroups(Cut cut, long unit) {
        for (int rank = 0; unit > 1 && rank < cut.getRanks(); rank++) {
            for (ShardRange range : cut.getRanges(rank)) {
                if (range.start() % unit != 0 || range.length() % unit != 0) {
                    return false;
                }
            }
        }
        return true;
    }

    private static boolean isAlike(SlicePlace place, Set<SlicePlace> others) {
        return others == null || others.stream().anyMatch(place::isAlike);
    }

    /** What is computed of two slices, such as queries and keys, has to be of the same features. */
    private void checkTogether(long start, Node node, Map<Long, Set<SlicePlace>> found) {
        found.forEach(
                (other, theirs) -> {
                    if (other != start) {
                        if (found.get(start).stream().noneMatch(each -> isAlike(each, theirs))) {
                            throw refusal(node, slice(start));
                        }
                        if (!isPart(start, found.get(start)) && !isPart(other, theirs)) {
                            checkCuts(start, trace.getCuts().get(other));
                        }
                    }
                });
    }

    /** Returns whether a layer or a loss takes the slice: by itself, or as the end of a product. */
    private boolean isTaken(Node node) {
        return trace.getBoundaries().containsKey(node.address())
                || SliceRules.isProduct(node.operation())
                        && consumers.getOrDefault(node.address(), Set.of()).stream()
                                .anyMatch(this::isProductOfSlices);
    }

    private boolean isProductOfSlices(long node) {
        PassTrace.Boundary boundary = trace.getBoundaries().get(node);
        return boundary != null
                && trace.getCuts().containsKey(node)
                && boundary.below().isShard()
                && !boundary.above().isShard();
    }

    /** Where they are taken, or are the output, the features are the last axis, in their order. */
    private void checkOrder(long start, long[] shape, Set<SlicePlace> found) {
        if (found.stream().noneMatch(place -> place.isLast(shape))) {
            throw moved(shape, slice(start));
        }
    }

    /** A mask of dropout is made for features, or their groups, that lie together at the end. */
    private void checkMask(long start, Node node, Set<SlicePlace> found) {
        Cut cut =
                trace.getMasked().contains(node.address())
                        ? trace.getCuts().get(node.address())
                        : null;
        if (cut == null || trace.getSlices().containsKey(node.address())) {
            return;
        }
        boolean fits =
                IntStream.range(0, cut.getRanks())
                        .mapToLong(cut::getShardLength)
                        .anyMatch(
                                own -> found.stream().anyMatch(at -> at.isLast(node.shape(), own)));
        if (!fits) {
            throw new IllegalArgumentException(
                    describe(slice(start))
                            + ". Dropout takes "
                            + Arrays.toString(node.shape())
                            + " of it, where the features are not the last axis, or the last axes,"
                            + " in their order: its mask would depend on the number of ranks. Put"
                            + " the dropout before the reshape or the swapAxes that moves them, or"
                            + " behind that which takes them back");
        }
    }

    /** A product, and what its layer computed of it, have the cut that the layer needs. */
    private void checkTaken(long start, Set<SlicePlace> found, Node node) {
        if (isPart(start, found)) {
            return;
        }
        checkCuts(start, trace.getCuts().get(node.address()));
        for (long end : consumers.getOrDefault(node.address(), Set.of())) {
            if (!trace.getSlices().containsKey(end) && isProductOfSlices(end)) {
                checkCuts(start, trace.getCuts().get(end));
            }
        }
    }

    /**
     * Returns whether a slice is one of the parts of what was stacked, of which no cut is known.
     */
    private boolean isPart(long start, Set<SlicePlace> found) {
        long[] shape = slice(start).shape();
        long all = shape[shape.length - 1];
        return isStacked(trace.getCuts().get(start))
                && found.stream().allMatch(place -> place.count() * place.unit() < all);
    }

    private void checkCuts(long start, Cut needed) {
        Cut cut = trace.getCuts().get(start);
        if (cut != null && needed != null && !isSame(cut, needed)) {
            throw new IllegalArgumentException(
                    slice(start).name()
                            + " is cut over the ranks as "
                            + cut
                            + ", and is put together with features, or taken by a layer, that are"
                            + " cut as "
                            + needed
                            + ": give both the same cut, by optShardingStrategy, or build the"
                            + " layer with optGatherOutput(true)");
        }
    }

    /** Of two lengths, replicas, such as keys that several ranks need, have shares of their own. */
    private static boolean isSame(Cut cut, Cut needed) {
        boolean replicated = !cut.isPartition() || !needed.isPartition();
        return replicated && cut.getLength() != needed.getLength() || hasSameShares(cut, needed);
    }

    /** Returns whether ranks have the same shares: of queries and keys, say, of other lengths. */
    private static boolean hasSameShares(Cut one, Cut other) {
        boolean same = one.getRanks() == other.getRanks();
        for (int rank = 0; same && rank < one.getRanks(); rank++) {
            List<ShardRange> ranges = one.getRanges(rank);
            List<ShardRange> theirs = other.getRanges(rank);
            same = ranges.size() == theirs.size();
            for (int i = 0; same && i < ranges.size(); i++) {
                long length = one.getLength();
                long their = other.getLength();
                same =
                        ranges.get(i).start() * their == theirs.get(i).start() * length
                                && ranges.get(i).length() * their
                                        == theirs.get(i).length() * length;
            }
        }
        return same;
    }

    private static IllegalArgumentException moved(long[] shape, PassTrace.Slice slice) {
        return new IllegalArgumentException(
                describe(slice)
                        + ". A layer, a loss or the end of the network takes what was computed of"
                        + " it, "
                        + Arrays.toString(shape)
                        + ", where the features are no longer the last axis, in their order: a"
                        + " reshape, a swapAxes or a transpose has moved them. Take them back"
                        + " before, or build the layer with optGatherOutput(true)");
    }

    private static IllegalArgumentException refusal(Node node, PassTrace.Slice slice) {
        return new IllegalArgumentException(
                describe(slice)
                        + ", and "
                        + node.operation()
                        + ", whose result is "
                        + Arrays.toString(node.shape())
                        + ", does not commute with the cut: it would be computed of each slice for"
                        + " itself. Build the layer with optGatherOutput(true), or let elementwise"
                        + " operations and a RowParallelLinear follow it");
    }

    private static String describe(PassTrace.Slice slice) {
        return slice.name()
                + " is cut over the ranks, each has a slice "
                + Arrays.toString(slice.shape());
    }
}
