package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.cut.Cut;
import io.djltp.layout.Region.Features;
import io.djltp.layout.Region.Rows;
import io.djltp.layout.RegionScopes.Place;
import io.djltp.torch.Autograd;
import io.djltp.torch.RandomDraws;

import java.util.Set;

/**
 * What a rank knows of the forward pass that it computes: how the arrays lie over the ranks, and
 * where one region of the network ends and another begins.
 *
 * <p>A region has a manager of its own: whatever is computed of an array stays in its region, in
 * branches too, until a layer of ours takes it to another one. How the region was left is noted
 * with the node of the autograd graph, in which the analysis of the pass finds it again.
 */
public final class ForwardPass {

    private final long globalRows;
    private final long rows;
    private final int sharing;
    private final boolean overlaid;
    private final boolean guarded;
    private final Region start;
    private final RegionScopes scopes;
    private final ShapeErrors errors = new ShapeErrors();
    private final PassTrace trace = new PassTrace();
    private boolean training = true; // unless a trainer says that it evaluates
    private boolean watched;

    /**
     * Begins a pass.
     *
     * @param globalRows the number of rows of the batch over all ranks
     * @param rows the number of rows that count on this rank
     * @param sharing the number of ranks that share the rows; 1 if this rank has all of them
     * @param overlaid whether features are cut over the same ranks as rows, so that the rows have
     *     to be gathered before
     * @param manager the manager of what is made on the way, or {@code null} to have regions known
     *     by the rows of arrays only
     * @param guarded whether random numbers must not be drawn where several ranks compute alike,
     *     see {@link RandomDraws}
     */
    public ForwardPass(
            long globalRows,
            long rows,
            int sharing,
            boolean overlaid,
            NDManager manager,
            boolean guarded) {
        this.globalRows = globalRows;
        this.rows = rows;
        this.sharing = sharing;
        this.overlaid = overlaid;
        this.guarded = guarded;
        start = new Region(sharing > 1 ? Rows.CUT : Rows.WHOLE, Features.REPLICATED);
        scopes = new RegionScopes(manager, start);
        guard(start);
    }

    /**
     * Returns the number of rows of the batch over all ranks.
     *
     * @return the number of rows
     */
    public long getGlobalRows() {
        return globalRows;
    }

    /**
     * Returns which rows of the batch each rank has, where it is cut.
     *
     * @return the cut of axis 0 of the batch
     */
    public Cut getBatchCut() {
        return Cut.balanced(globalRows, sharing);
    }

    /**
     * Returns the number of rows of the batch that count on this rank. It is 0 on a rank that a
     * small batch has left without one: that computes a row of another rank, which then is dropped.
     *
     * @return the number of rows
     */
    public long getRows() {
        return rows;
    }

    /**
     * Returns whether the batch has left ranks without a row.
     *
     * @return whether it has fewer rows than there are ranks to share them
     */
    public boolean hasSpareRanks() {
        return start.isRowsCut() && globalRows < sharing;
    }

    /**
     * Returns whether the rows of the batch have to be gathered before the features can be cut:
     * both lie over the same ranks.
     *
     * @return whether the axes are overlaid
     */
    public boolean isOverlaid() {
        return overlaid;
    }

    /**
     * Sets what the pass is for.
     *
     * @param train whether a backward pass may follow
     * @param watch whether the pass has to be in the graph completely, for its analysis: what
     *     depends on nothing that is trained, and what is evaluated, is not otherwise
     */
    public void setPurpose(boolean train, boolean watch) {
        training = train;
        watched = watch;
    }

    /**
     * Returns whether a backward pass may follow.
     *
     * @return whether the pass is trained on
     */
    public boolean isTraining() {
        return training;
    }

    /**
     * Returns whether slices are in the graph though nothing below them is trained.
     *
     * @return whether the pass is completely in the graph
     */
    public boolean isWatched() {
        return watched;
    }

    /**
     * Returns what the analysis of the pass needs.
     *
     * @return the trace
     */
    public PassTrace getTrace() {
        return trace;
    }

    /**
     * Returns the region of an array.
     *
     * @param array the array
     * @return the region
     * @throws IllegalStateException if it cannot be known
     */
    public Region regionOf(NDArray array) {
        Place place = scopes.placeOf(array);
        if (place != null) {
            return place.region();
        }
        Set<Region> above = trace.regionsOf(array);
        for (Region region : above) {
            if (region.isShard()) {
                return region;
            }
        }
        return overlaid && start.isRowsCut() && scopes.has(Region.WHOLE)
                ? regionByRows(array, above)
                : start;
    }

    /** Of an array whose operation had a parameter as its first operand. */
    private Region regionByRows(NDArray array, Set<Region> above) {
        long first = array.getShape().dimension() == 0 ? -1 : array.getShape().get(0);
        Region region = first == Math.max(1, rows) ? start : Region.WHOLE;
        boolean fits = region == start || first == globalRows;
        if (fits && (above.isEmpty() || above.equals(Set.of(region)))) {
            return region;
        }
        throw new IllegalStateException(
                "It cannot be known whether "
                        + array.getShape()
                        + " is of the whole batch of "
                        + globalRows
                        + " rows or of this rank's "
                        + rows
                        + " in MIXED mode: an operation on the way had a parameter as its first"
                        + " operand. Let the activation be the first: x.mul(w), not w.mul(x)");
    }

    /** Returns the rows of an array in a layer that is cut over the ranks. */
    private Rows rowsOf(NDArray array) {
        Place place = overlaid ? null : scopes.placeOf(array);
        if (place != null) {
            return place.region().rows();
        }
        return overlaid ? Rows.WHOLE : start.rows();
    }

    /**
     * Makes a rank's rows of the batch a part of the graph.
     *
     * @param input the rows
     * @return the same, as copies where they were changed
     */
    public NDList watchRows(NDList input) {
        NDList watchedRows = new NDList(input.size());
        for (NDArray array : input) {
            NDArray own = Autograd.tracked(array);
            own.setName(array.getName());
            trace.boundary(own, start, start);
            watchedRows.add(own);
        }
        return watchedRows;
    }

    /**
     * Takes an array that a layer has computed to where the features lie otherwise.
     *
     * @param array the array
     * @param features how its features lie
     * @param below how those lie that it was computed from
     * @return the array
     */
    public NDArray enter(NDArray array, Features features, Features below) {
        Region region = new Region(rowsOf(array), features);
        return enter(array, region, region.with(below));
    }

    private NDArray enter(NDArray array, Region region, Region below) {
        trace.boundary(array, region, below);
        guard(region);
        scopes.attach(array, region);
        return array;
    }

    /**
     * Takes the rows of all ranks that a layer has gathered for itself to where rows are whole.
     *
     * @param array the rows
     * @param partial whether the layer's gradient of them is a summand on each rank
     * @return the array
     */
    public NDArray enterGathered(NDArray array, boolean partial) {
        Region above = partial ? Region.WHOLE.with(Features.SHARD) : Region.WHOLE;
        trace.boundary(array, above, start);
        guard(Region.WHOLE);
        scopes.attach(array, Region.WHOLE);
        return array;
    }

    /**
     * Takes the rows that a layer has left on this rank of a sum over the ranks to where rows are
     * cut.
     *
     * @param array this rank's rows
     * @return the array
     */
    public NDArray enterScattered(NDArray array) {
        return enter(array, start, Region.WHOLE.with(Features.PARTIAL));
    }

    /**
     * Notes from how the features of something else an array was computed.
     *
     * @param array the array
     * @param features how its features lie
     * @param below how those lie that it was computed from
     */
    public void leave(NDArray array, Features features, Features below) {
        Region region = new Region(rowsOf(array), features);
        trace.boundary(array, region, region.with(below));
    }

    /**
     * Notes that the rows of all ranks of an output were put together for the loss.
     *
     * @param array the rows
     * @param region the region of this rank's rows
     * @param layout how the features are cut, or {@code null}
     * @param name what it is, for errors
     */
    public void gathered(NDArray array, Region region, ShardedLayout layout, String name) {
        trace.boundary(array, region.with(Rows.WHOLE), region);
        if (layout != null) {
            trace.slice(array, layout.head(), name);
            scopes.note(array, new Place(region.with(Rows.WHOLE), layout));
        }
    }

    /**
     * Takes an array into a region of slices.
     *
     * @param array this rank's slice of the last axis, or the features of a head
     * @param layout how the whole is cut
     * @param below how the features lie that it was computed from
     * @param layer the layer, for errors
     * @return the array
     */
    public NDArray enterSlice(NDArray array, ShardedLayout layout, Features below, String layer) {
        NDArray slice = watched ? Autograd.tracked(array) : array;
        Region region = new Region(rowsOf(array), Features.SHARD);
        Place place = new Place(region, layout);
        trace.boundary(slice, region, region.with(below));
        trace.slice(slice, layout.head(), "The output of " + layer);
        trace.cut(slice, layout.cut());
        if (layout.head() != null) {
            trace.addHead(layout.head());
        } else {
            scopes.attachSlice(slice, place);
        }
        scopes.note(slice, place);
        errors.addLayer(
                layer + " (here " + slice.getShape() + " of " + layout.cut().getLength() + ")");
        return slice;
    }

    /** Where rows and features lie over the same ranks, none computes what another does. */
    private void guard(Region region) {
        if (guarded) {
            RandomDraws.setRefused(!overlaid || !region.isRowsCut());
        }
    }

    /**
     * Adds to an exception of a block or a loss that has not expected a slice where the slices come
     * from: DJL and libtorch know of shapes only.
     *
     * @param e the exception
     * @return an exception with the cause and the remedy, or the same if it is not about slices
     */
    public RuntimeException explain(RuntimeException e) {
        boolean gathered = start.isRowsCut() && scopes.has(Region.WHOLE);
        return errors.explain(e, gathered ? new long[] {rows, globalRows} : null);
    }

    /**
     * Returns how the whole is cut that an array is a slice of. What was computed of a slice, and
     * has a last axis of the same length, is cut as it is.
     *
     * @param array the array
     * @return the layout, or {@code null} if the array is not known to be a slice
     */
    public ShardedLayout layoutOf(NDArray array) {
        Place place = scopes.placeOf(array);
        return place == null ? null : place.layout();
    }

    /**
     * Notes again that an array is this rank's slice of a larger one.
     *
     * @param array the slice
     * @param layout how the whole is cut
     */
    public void setLayout(NDArray array, ShardedLayout layout) {
        scopes.note(array, new Place(new Region(rowsOf(array), Features.SHARD), layout));
    }
}
