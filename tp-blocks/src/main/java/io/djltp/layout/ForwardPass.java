package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.cut.Cut;
import io.djltp.torch.Autograd;
import io.djltp.torch.RandomDraws;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * What a rank knows of the forward pass that it computes: how the arrays lie over the ranks, and
 * where one region of the network ends and another begins.
 *
 * <p>An operation of DJL attaches its result to the manager of its first operand. So a region has a
 * manager of its own: whatever is computed of an array stays in its region, in branches too, until
 * a layer of ours takes it to another one. How the region was left is noted with the node of the
 * autograd graph, in which the analysis of the pass finds it again.
 */
public final class ForwardPass {

    private static final Pattern SHAPES =
            Pattern.compile(
                    "size|shape|dimension|broadcast|match|element|channel|length",
                    Pattern.CASE_INSENSITIVE);

    private static final int DEEPEST = 32; // managers between an array and that of its region

    private final ParallelMode mode;
    private final int ranks;
    private final long globalRows;
    private final long rows;
    private final boolean cut;
    private final NDManager manager;
    private final boolean guarded;
    private final Map<NDArray, ShardedLayout> layouts = new IdentityHashMap<>();
    private final Map<NDManager, Place> places = new IdentityHashMap<>();
    private final Map<Region, NDManager> managers = new HashMap<>();
    private final List<String> cutLayers = new ArrayList<>();
    private final PassTrace trace = new PassTrace();
    private boolean training = true; // unless a trainer says that it evaluates
    private boolean watched;

    private record Place(Region region, ShardedLayout layout) {}

    /**
     * Begins a pass.
     *
     * @param mode how the ranks share the work
     * @param ranks the number of ranks
     * @param globalRows the number of rows of the batch over all ranks
     * @param rows the number of rows that count on this rank
     * @param cut whether this rank has only its part of the rows
     * @param manager the manager of what is made on the way, or {@code null} to have regions known
     *     by the rows of arrays only
     * @param guarded whether random numbers may be drawn only where the batch is cut, see {@link
     *     RandomDraws}
     */
    public ForwardPass(
            ParallelMode mode,
            int ranks,
            long globalRows,
            long rows,
            boolean cut,
            NDManager manager,
            boolean guarded) {
        this.mode = mode;
        this.ranks = ranks;
        this.globalRows = globalRows;
        this.rows = rows;
        this.cut = cut;
        this.manager = manager;
        this.guarded = guarded;
        guard(cut ? Region.BATCH_CUT : Region.WHOLE);
        if (manager != null) {
            places.put(manager, new Place(cut ? Region.BATCH_CUT : Region.WHOLE, null));
            managers.put(cut ? Region.BATCH_CUT : Region.WHOLE, manager);
        }
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
        return Cut.balanced(globalRows, ranks);
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
     * @return whether it has fewer rows than there are ranks
     */
    public boolean hasSpareRanks() {
        return cut && globalRows < ranks;
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
        if (layouts.containsKey(array)) {
            return Region.SHARDED;
        }
        Place place = placeOf(array);
        if (place != null) {
            return place.region;
        }
        Set<Region> above = trace.regionsOf(array);
        if (above.contains(Region.SHARDED)) {
            return Region.SHARDED;
        }
        if (mode == ParallelMode.TENSOR || !cut) {
            return Region.WHOLE;
        }
        boolean gathered = managers.containsKey(Region.WHOLE);
        return gathered && mode == ParallelMode.MIXED
                ? regionByRows(array, above)
                : Region.BATCH_CUT;
    }

    /** Of an array whose operation had a parameter as its first operand. */
    private Region regionByRows(NDArray array, Set<Region> above) {
        long first = array.getShape().dimension() == 0 ? -1 : array.getShape().get(0);
        Region region = first == Math.max(1, rows) ? Region.BATCH_CUT : Region.WHOLE;
        boolean fits = region == Region.BATCH_CUT || first == globalRows;
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

    private Place placeOf(NDArray array) {
        if (places.isEmpty()) {
            return null;
        }
        NDManager at = array.getManager();
        for (int i = 0; i < DEEPEST && at != null; i++) {
            Place place = places.get(at);
            if (place != null) {
                return place;
            }
            NDManager parent = at.getParentManager();
            at = parent == at ? null : parent;
        }
        return null;
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
            trace.boundary(own, Region.BATCH_CUT, Region.BATCH_CUT);
            watchedRows.add(own);
        }
        return watchedRows;
    }

    /**
     * Takes an array that a layer has computed into another region.
     *
     * @param array the array
     * @param region the region that it is in
     * @param below the region of what it was computed from
     * @return the array
     */
    public NDArray enter(NDArray array, Region region, Region below) {
        trace.boundary(array, region, below);
        guard(region);
        attach(array, managerOf(region));
        return array;
    }

    /**
     * Takes the rows of all ranks that a layer has gathered for itself into the region of the
     * whole.
     *
     * @param array the rows
     * @param partial whether the layer's gradient of them is a summand on each rank
     * @return the array
     */
    public NDArray enterGathered(NDArray array, boolean partial) {
        Region above = partial ? Region.SHARDED : Region.WHOLE;
        trace.boundary(array, above, Region.BATCH_CUT);
        guard(Region.WHOLE);
        attach(array, managerOf(Region.WHOLE));
        return array;
    }

    /**
     * Notes from which region an array was computed, without a change of its own.
     *
     * @param array the array
     * @param region the region that it is in
     * @param below the region of what it was computed from
     */
    public void leave(NDArray array, Region region, Region below) {
        trace.boundary(array, region, below);
    }

    /**
     * Takes an array into the region of slices.
     *
     * @param array this rank's slice of the last axis, or the features of a head
     * @param layout how the whole is cut
     * @param below the region of what it was computed from
     * @param layer the layer, for errors
     * @return the array
     */
    public NDArray enterSlice(NDArray array, ShardedLayout layout, Region below, String layer) {
        NDArray slice = watched ? Autograd.tracked(array) : array;
        trace.boundary(slice, Region.SHARDED, below);
        trace.slice(slice, layout.head(), "The output of " + layer);
        trace.cut(slice, layout.cut());
        if (layout.head() != null) {
            trace.addHead(layout.head());
        }
        if (manager != null && layout.head() == null) {
            NDManager scope = manager.newSubManager();
            places.put(scope, new Place(Region.SHARDED, layout));
            attach(slice, scope);
        }
        layouts.put(slice, layout);
        cutLayers.add(
                layer + " (here " + slice.getShape() + " of " + layout.cut().getLength() + ")");
        return slice;
    }

    private void guard(Region region) {
        if (guarded) {
            RandomDraws.setRefused(region != Region.BATCH_CUT);
        }
    }

    private NDManager managerOf(Region region) {
        if (manager == null) {
            return null;
        }
        return managers.computeIfAbsent(
                region,
                key -> {
                    NDManager scope = manager.newSubManager();
                    places.put(scope, new Place(key, null));
                    return scope;
                });
    }

    private static void attach(NDArray array, NDManager to) {
        if (to != null) {
            array.attach(to);
        }
    }

    /** Only DJL and libtorch do not know of ranks; what a block or a loss throws is its own. */
    private static boolean isAboutShapes(RuntimeException e) {
        StackTraceElement[] trace = e.getStackTrace();
        return trace.length > 0
                && trace[0].getClassName().startsWith("ai.djl.")
                && SHAPES.matcher(String.valueOf(e.getMessage())).find();
    }

    /**
     * Adds to an exception of a block or a loss that has not expected a slice where the slices come
     * from: DJL and libtorch know of shapes only.
     *
     * @param e the exception
     * @return an exception with the cause and the remedy, or the same if it is not about slices
     */
    public RuntimeException explain(RuntimeException e) {
        if (String.valueOf(e.getMessage()).contains("has been released already")) {
            return new IllegalArgumentException(
                    "A block or a loss uses an array that is closed. A parallel trainer replaces"
                            + " the model's arrays of parameters that are cut: ask the parameter"
                            + " store, parameterStore.getValue(parameter, device, training). A"
                            + " penalty on weights is the optimizer's: optWeightDecays(...)",
                    e);
        }
        boolean gathered = cut && managers.containsKey(Region.WHOLE);
        if (!isAboutShapes(e) || cutLayers.isEmpty() && !gathered) {
            return e;
        }
        StringBuilder text = new StringBuilder(String.valueOf(e.getMessage()));
        if (!cutLayers.isEmpty()) {
            text.append(
                    ". The outputs of these layers are cut over the ranks, and each rank has a");
            text.append(" slice of the last axis: ").append(String.join(", ", cutLayers));
            text.append(
                    ". A block or a loss that needs the whole of it, or a number of heads that");
            text.append(" the ranks do not divide, cannot take a slice: build the layer with");
            text.append(" optGatherOutput(true), or let elementwise operations and a");
            text.append(" RowParallelLinear follow");
        }
        if (gathered) {
            text.append(". This rank has ").append(rows).append(" of the ").append(globalRows);
            text.append(" rows of the batch before a layer with optBatchShardedInput(true), and");
            text.append(
                    " all of them after it: what branches off before it can be joined after it");
            text.append(" only behind a RowParallelLinear with optBatchShardedOutput(true)");
        }
        return new IllegalArgumentException(text.toString(), e);
    }

    /**
     * Returns how the whole is cut that an array is a slice of. What was computed of a slice, and
     * has a last axis of the same length, is cut as it is.
     *
     * @param array the array
     * @return the layout, or {@code null} if the array is not known to be a slice
     */
    public ShardedLayout layoutOf(NDArray array) {
        ShardedLayout layout = layouts.get(array);
        if (layout != null) {
            return layout;
        }
        Place place = placeOf(array);
        return place == null ? null : place.layout;
    }

    /**
     * Notes again that an array is this rank's slice of a larger one.
     *
     * @param array the slice
     * @param layout how the whole is cut
     */
    public void setLayout(NDArray array, ShardedLayout layout) {
        layouts.put(array, layout);
    }
}
