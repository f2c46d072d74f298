package io.djltp.layout;

import ai.djl.ndarray.NDArray;

import io.djltp.layout.Region.Rows;
import io.djltp.layout.RegionScopes.Place;
import io.djltp.torch.AutogradGraph;
import io.djltp.torch.TensorView;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Finds out in which region an array is: by its manager, else by what it was computed from. */
final class ArrayRegions {

    private final RegionScopes scopes;
    private final PassTrace trace;
    private final Region start;
    private final boolean overlaid;
    private final long[] rows; // of this rank, and of all

    ArrayRegions(
            RegionScopes scopes, PassTrace trace, Region start, boolean overlaid, long[] rows) {
        this.scopes = scopes;
        this.trace = trace;
        this.start = start;
        this.overlaid = overlaid;
        this.rows = rows;
    }

    /** Returns whether a layer has gathered the rows of a batch that was cut. */
    boolean isGathered() {
        return start.isRowsCut() && scopes.has(Region.WHOLE);
    }

    /** Returns the region of an array, see {@link ForwardPass#regionOf}. */
    Region of(NDArray array) {
        Place place = scopes.placeOf(array);
        if (place != null) {
            return place.region();
        }
        Set<Region> above = regionsAbove(array);
        for (Region region : above) {
            if (region.isShard() || region.isTokensCut()) {
                return region;
            }
        }
        return overlaid && isGathered() ? byRows(array, above) : start;
    }

    /** Returns how the whole is cut that an array is a slice of, or {@code null}. */
    ShardedLayout layoutOf(NDArray array) {
        Place place = scopes.placeOf(array);
        return place == null ? null : place.layout();
    }

    /** Returns how the tokens are cut of which an array is a rank's part, or {@code null}. */
    TokenCut tokensOf(NDArray array) {
        Place place = scopes.placeOf(array);
        return place == null ? null : place.tokens();
    }

    /** Returns the regions that an array was computed in, as far as the graph knows. */
    private Set<Region> regionsAbove(NDArray array) {
        Set<Region> above = new LinkedHashSet<>();
        Map<Long, PassTrace.Boundary> boundaries = trace.getBoundaries();
        if (boundaries.isEmpty() || !TensorView.of(array).requiresGradient()) {
            return above;
        }
        AutogradGraph graph = AutogradGraph.of(List.of(array));
        Set<Long> seen = new HashSet<>();
        Deque<Long> open = new ArrayDeque<>(List.of(AutogradGraph.nodeOf(array)));
        while (!open.isEmpty()) {
            long address = open.poll();
            PassTrace.Boundary boundary = boundaries.get(address);
            if (boundary != null) {
                above.add(boundary.above());
            } else if (seen.add(address) && graph.get(address) != null) {
                open.addAll(graph.get(address).inputs());
            }
        }
        return above;
    }

    /** Of an array whose operation had a parameter as its first operand. */
    private Region byRows(NDArray array, Set<Region> above) {
        long first = array.getShape().dimension() == 0 ? -1 : array.getShape().get(0);
        Region region = first == Math.max(1, rows[0]) ? start : Region.WHOLE;
        boolean fits = region == start || first == rows[1];
        if (fits && (above.isEmpty() || above.equals(Set.of(region)))) {
            return region;
        }
        throw new IllegalStateException(
                "It cannot be known whether "
                        + array.getShape()
                        + " is of the whole batch of "
                        + rows[1]
                        + " rows or of this rank's "
                        + rows[0]
                        + " in MIXED mode: an operation on the way had a parameter as its first"
                        + " operand. Let the activation be the first: x.mul(w), not w.mul(x)");
    }

    /** Returns the rows of an array in a layer that is cut over the ranks. */
    Rows rowsOf(NDArray array) {
        if (overlaid) {
            return Rows.WHOLE; // else they had to be gathered before
        }
        Place place = scopes.placeOf(array);
        return place == null ? start.rows() : place.region().rows();
    }
}
