package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.layout.Region.Features;
import io.djltp.layout.Region.Rows;
import io.djltp.layout.RegionScopes.Place;
import io.djltp.torch.Autograd;
import io.djltp.torch.RandomDraws;

/**
 * What a rank knows of the forward pass that it computes: how the arrays lie over the ranks, and
 * where one region of the network ends and another begins.
 *
 * <p>What is computed of an array stays in its region, in branches too, until a layer takes it to
 * another one, which is noted with the node of the autograd graph for the analysis of the pass.
 */
public class ForwardPass {

    private final long globalRows;
    private final long rows;
    private final int sharing;
    private final boolean overlaid;
    private final boolean guarded;
    private final Region start;
    final RegionScopes scopes;
    PartAnalysis analysis; // or null
    private final ArrayRegions regions;
    private final SliceRegions slices;
    private final ShapeErrors errors = new ShapeErrors();
    private final PassTrace trace = new PassTrace();
    private final TokenRegion tokens;
    private boolean training = true; // unless a trainer says that it evaluates
    private boolean watched;

    /**
     * Begins a pass.
     *
     * @param globalRows the number of rows of the batch over all ranks
     * @param rows the number of rows that count on this rank
     * @param sharing the number of ranks that share the rows; 1 if this rank has all of them
     * @param overlaid whether features are cut over the same ranks as rows
     * @param manager the manager of what is made on the way, or {@code null} to know regions by
     *     rows
     * @param guarded whether random numbers must not be drawn where several ranks compute alike
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
        regions = new ArrayRegions(scopes, trace, start, overlaid, new long[] {rows, globalRows});
        slices = new SliceRegions(scopes, regions, trace, errors);
        tokens = new TokenRegion(scopes, regions, trace, errors);
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
        return getBatchCut(sharing);
    }

    /**
     * Returns which rows of the batch each rank has where a layer cuts it again.
     *
     * @param ranks the number of ranks over which it is cut
     * @return the cut of axis 0 of the batch
     */
    public Cut getBatchCut(int ranks) {
        return Cut.balanced(globalRows, ranks);
    }

    /**
     * Returns the number of rows of the batch that count on this rank. One that a small batch has
     * left without computes a row of another rank, which is dropped.
     *
     * @return the number of rows
     */
    public long getRows() {
        return rows;
    }

    /** {@return whether the batch has fewer rows than there are ranks to share them} */
    public boolean hasSpareRanks() {
        return start.isRowsCut() && globalRows < sharing;
    }

    /**
     * Returns whether rows have to be gathered before features can be cut, over the same ranks.
     *
     * @return whether they have to
     */
    public boolean isOverlaid() {
        return overlaid;
    }

    /**
     * Sets what the pass is for.
     *
     * @param train whether a backward pass may follow
     * @param watch whether all of it has to be in the graph, for its analysis, trained on or not
     * @param parts what looks at parts whose graph is dropped, or {@code null}
     */
    public final void setPurpose(boolean train, boolean watch, PartAnalysis parts) {
        training = train;
        watched = watch;
        analysis = parts;
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
     * Returns whether what depends on nothing that is trained is in the graph too.
     *
     * @return whether it is
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
     * Returns the way in and out of sequence parallelism.
     *
     * @return the region
     */
    public TokenRegion getTokenRegion() {
        return tokens;
    }

    /**
     * Returns the region of an array.
     *
     * @param array the array
     * @return the region
     * @throws IllegalStateException if it cannot be known
     */
    public Region regionOf(NDArray array) {
        return regions.of(array);
    }

    /**
     * Makes a rank's rows of the batch a part of the graph.
     *
     * @param input the rows
     * @return the same, as copies where they were changed
     */
    public NDList watchRows(NDList input) {
        return trace.watch(input, start);
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
        Region region = new Region(regions.rowsOf(array), features);
        return enter(array, region, region, region.with(below));
    }

    private NDArray enter(NDArray array, Region region, Region above, Region below) {
        trace.boundary(array, above, below);
        guard(region);
        scopes.attach(array, region);
        return array;
    }

    /**
     * Takes the rows of all ranks that a layer has gathered to where rows are whole.
     *
     * @param array the rows
     * @param partial whether the layer's gradient of them is a summand on each rank
     * @return the array
     */
    public NDArray enterGathered(NDArray array, boolean partial) {
        Features above = partial ? Features.SHARD : Features.REPLICATED;
        return enter(array, Region.WHOLE, Region.WHOLE.with(above), start);
    }

    /**
     * Takes this rank's rows of a sum over the ranks to where rows are cut.
     *
     * @param array this rank's rows
     * @param rows the rows of all ranks
     * @return the array; on a rank without a row, what does not count in its place
     */
    public NDArray enterScattered(NDArray array, long rows) {
        NDArray own = enter(array, start, start, Region.WHOLE.with(Features.PARTIAL));
        return getRows() == 0 ? SpareRow.add(own, rows / getGlobalRows()) : own;
    }

    /**
     * Notes from how the features of something else an array was computed.
     *
     * @param array the array
     * @param features how its features lie
     * @param below how those lie that it was computed from
     */
    public void leave(NDArray array, Features features, Features below) {
        Region region = new Region(regions.rowsOf(array), features);
        trace.boundary(array, region, region.with(below));
    }

    /**
     * Notes that the rows of all ranks of an output were put together for the loss.
     *
     * @param array the rows of all ranks
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
        return slices.enter(array, layout, below, layer, watched);
    }

    /**
     * Takes a slice into a block that may divide it, such as into heads. What is computed of the
     * result is not looked at until the block enters it again ({@link #enterSlice}).
     *
     * @param slice this rank's slice of the last axis, that a layer has entered
     * @param cut how the block needs it cut
     * @param rank this rank in the group that the features are cut over
     * @param block the block, for errors
     * @return a view of the slice
     * @throws IllegalArgumentException if the array is no slice, or cut otherwise
     */
    public NDArray takeSlice(NDArray slice, Cut cut, int rank, String block) {
        return slices.take(slice, cut, rank, block);
    }

    /** Where rows and features lie over the same ranks, no two compute alike before the gather. */
    private void guard(Region region) {
        if (guarded) {
            RandomDraws.setRefused(!overlaid || !region.isRowsCut());
        }
    }

    /**
     * Adds to an exception of a block or a loss where the slices come from that it got.
     *
     * @param e the exception
     * @param slices whether it can have got any: a loss of whole outputs has not
     * @return an exception with the remedy, or the same if it is not about slices
     */
    public RuntimeException explain(RuntimeException e, boolean slices) {
        long[] gathered = regions.isGathered() ? new long[] {rows, globalRows} : null;
        return errors.explain(e, gathered, slices);
    }

    /**
     * Returns how the whole is cut that an array is a slice of.
     *
     * @param array the array, or what was computed of it
     * @return the layout, or {@code null} if the array is not known to be a slice
     */
    public ShardedLayout layoutOf(NDArray array) {
        return regions.layoutOf(array);
    }

    /**
     * Notes again that an array is this rank's slice of a larger one.
     *
     * @param array the slice
     * @param layout how the whole is cut
     */
    public void setLayout(NDArray array, ShardedLayout layout) {
        scopes.note(array, new Place(new Region(regions.rowsOf(array), Features.SHARD), layout));
    }

    /** Takes arrays into regions of slices, and slices from there into blocks that divide them. */
    private static final class SliceRegions {

        private final RegionScopes scopes;
        private final ArrayRegions regions;
        private final PassTrace trace;
        private final ShapeErrors errors;

        SliceRegions(
                RegionScopes scopes, ArrayRegions regions, PassTrace trace, ShapeErrors errors) {
            this.scopes = scopes;
            this.regions = regions;
            this.trace = trace;
            this.errors = errors;
        }

        /** Takes an array into a region of slices, see {@link ForwardPass#enterSlice}. */
        NDArray enter(
                NDArray array,
                ShardedLayout layout,
                Features below,
                String layer,
                boolean watched) {
            NDArray slice = watched ? Autograd.tracked(array) : array;
            Region region = new Region(regions.rowsOf(array), Features.SHARD);
            Place place = new Place(region, layout);
            trace.boundary(slice, region, region.with(below));
            trace.slice(slice, layout.head(), "The output of " + layer);
            trace.cut(slice, layout.cut());
            if (layout.head() != null) {
                trace.addHead(layout.head());
            } else {
                scopes.attach(slice, place);
            }
            scopes.note(slice, place);
            errors.addLayer(layer, slice.getShape(), layout.cut().getLength());
            return slice;
        }

        /** Takes a slice into a block, see {@link ForwardPass#takeSlice}. */
        NDArray take(NDArray slice, Cut cut, int rank, String block) {
            Region region = regions.of(slice);
            ShardedLayout layout = regions.layoutOf(slice);
            long[] shape = slice.getShape().getShape();
            if (!region.isShard()
                    || layout != null && !layout.cut().equals(cut)
                    || shape[shape.length - 1] != cut.getShardLength(rank)) {
                throw new IllegalArgumentException(
                        block
                                + " needs a slice of the features that is cut over the ranks as "
                                + cut
                                + ", and gets "
                                + slice.getShape()
                                + (layout != null
                                        ? ", cut as " + layout.cut()
                                        : region.isShard() ? ", a slice" : ", which is whole")
                                + ": let a layer with that cut come before it");
            }
            NDArray taken = slice.reshape(slice.getShape()); // a view, with a node of its own
            trace.boundary(taken, region, region);
            trace.cut(taken, cut);
            scopes.attach(taken, new Place(region, null));
            return taken;
        }
    }

    /**
     * The row of a rank that has none, because the batch has fewer rows than there are ranks: it
     * computes one that does not count, so that every operation has something to compute, and what
     * branches off has as many rows as what it is joined with.
     */
    private static final class SpareRow {

        private SpareRow() {}

        /**
         * Adds zeros to an array without a row.
         *
         * @param empty the array, [0, ...]; it stays in the graph, so that backward all ranks do
         *     alike
         * @param times how many rows one of the batch has become
         * @return the array, [times, ...]
         */
        static NDArray add(NDArray empty, long times) {
            Shape shape = new Shape(times).addAll(empty.getShape().slice(1));
            NDArray zeros = empty.getManager().zeros(shape, empty.getDataType());
            return NDArrays.concat(new NDList(empty, zeros));
        }
    }
}
