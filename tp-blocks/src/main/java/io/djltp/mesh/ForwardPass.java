package io.djltp.mesh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.bridge.Autograd;
import io.djltp.bridge.AutogradGraph;
import io.djltp.bridge.RandomDraws;
import io.djltp.bridge.TensorView;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

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
    private final Map<Long, Region> boundaries = new HashMap<>();
    private final Map<Long, Slice> slices = new HashMap<>();
    private final Map<Long, Parameter> leaves = new HashMap<>();
    private final List<FusedHead> heads = new ArrayList<>();
    private final List<String> cutLayers = new ArrayList<>();
    private long structure = 17;

    private record Place(Region region, ShardedLayout layout) {}

    /**
     * An array that holds a rank's slice of the features.
     *
     * @param layer the layer that has computed it, for errors
     * @param shape the shape of the slice
     * @param head if not {@code null}, it is not the slice but the features of this head
     */
    public record Slice(String layer, long[] shape, FusedHead head) {}

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
    ForwardPass(
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
        if (mode == ParallelMode.TENSOR || !cut) {
            return Region.WHOLE;
        }
        return mode == ParallelMode.DATA ? Region.BATCH_CUT : regionByRows(array);
    }

    /** Of an array whose operation had a parameter as its first operand. */
    private Region regionByRows(NDArray array) {
        long first = array.getShape().dimension() == 0 ? -1 : array.getShape().get(0);
        if (first == Math.max(1, rows)) {
            return Region.BATCH_CUT;
        } else if (first == globalRows) {
            return Region.WHOLE;
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
     * Takes an array that a layer has computed into another region.
     *
     * @param array the array
     * @param region the region that it is in
     * @param below the region of what it was computed from
     * @return the array
     */
    public NDArray enter(NDArray array, Region region, Region below) {
        note(array, below);
        guard(region);
        attach(array, managerOf(region));
        structure = 31 * structure + region.ordinal() * 3L + below.ordinal() + 1;
        return array;
    }

    /**
     * Takes an array into the region of slices.
     *
     * @param array this rank's slice of the last axis, or the features of a head
     * @param layout how the whole is cut
     * @param below the region of what it was computed from
     * @param layer the layer, for errors
     */
    public void enterSlice(NDArray array, ShardedLayout layout, Region below, String layer) {
        long node = note(array, below);
        if (node != 0) {
            slices.put(node, new Slice(layer, array.getShape().getShape(), layout.head()));
        }
        if (manager != null && layout.head() == null) {
            NDManager scope = manager.newSubManager();
            places.put(scope, new Place(Region.SHARDED, layout));
            attach(array, scope);
        }
        if (layout.head() != null) {
            heads.add(layout.head());
        }
        layouts.put(array, layout);
        cutLayers.add(layer + " (here " + array.getShape() + " of " + layout.total() + ")");
        structure = 31 * structure + 7;
    }

    /**
     * Notes from which region an array was computed, without a change of its own.
     *
     * @param array the array
     * @param below the region of what it was computed from
     */
    public void leave(NDArray array, Region below) {
        note(array, below);
    }

    /**
     * Notes that a loss has taken the slices of all ranks.
     *
     * @param node the node of the graph that stands for it
     */
    public void takeSlices(long node) {
        boundaries.put(node, Region.SHARDED);
    }

    private long note(NDArray array, Region below) {
        if (!Autograd.isRecording() || !TensorView.of(array).requiresGradient()) {
            return 0;
        }
        long node = AutogradGraph.nodeOf(array);
        if (node != 0) {
            boundaries.put(node, below);
        }
        return node;
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

    /**
     * Adds to an exception of a block or a loss that has not expected a slice where the slices come
     * from: DJL and libtorch know of shapes only.
     *
     * @param e the exception
     * @return an exception with the cause and the remedy, or the same if it is not about slices
     */
    public RuntimeException explain(RuntimeException e) {
        boolean ours =
                e.getStackTrace().length > 0
                        && e.getStackTrace()[0].getClassName().startsWith("io.djltp.");
        if (ours || cutLayers.isEmpty()) {
            return e;
        }
        return new IllegalArgumentException(
                e.getMessage()
                        + ". The outputs of these layers are cut over the ranks, and each rank has"
                        + " a slice of the last axis: "
                        + String.join(", ", cutLayers)
                        + ". A block or a loss that needs the whole of it, or a number of heads"
                        + " that the ranks do not divide, cannot take a slice: build the layer with"
                        + " optGatherOutput(true), or let elementwise operations and a"
                        + " RowParallelLinear follow",
                e);
    }

    /**
     * Notes that a leaf of the graph stands for a parameter.
     *
     * @param leaf an array that requires a gradient
     * @param parameter the parameter that its gradient is made use of for
     */
    public void addLeaf(NDArray leaf, Parameter parameter) {
        leaves.put(AutogradGraph.nodeOfLeaf(leaf), parameter);
    }

    /**
     * Notes that a block has asked for a parameter.
     *
     * @param parameter the parameter
     */
    public void use(Parameter parameter) {
        int trained = parameter.requiresGradient() ? 1 : 0; // what is frozen is not in the graph
        structure = 31 * structure + 2L * System.identityHashCode(parameter) + trained;
    }

    /**
     * Returns what two passes have in common that have asked for the same parameters and changed
     * regions alike, in the same order: where it is equal, the pass need not be analysed again.
     *
     * @return a hash of the pass
     */
    public long getStructure() {
        return structure;
    }

    /**
     * Returns the region below each node at which the region changes.
     *
     * @return the regions by the address of the node
     */
    public Map<Long, Region> getBoundaries() {
        return boundaries;
    }

    /**
     * Returns the slices.
     *
     * @return the slices by the address of their node
     */
    public Map<Long, Slice> getSlices() {
        return slices;
    }

    /**
     * Returns the leaves that stand for a parameter.
     *
     * @return the parameters by the address of the node
     */
    public Map<Long, Parameter> getLeaves() {
        return leaves;
    }

    /**
     * Returns the heads that have left their output to the loss.
     *
     * @return the heads
     */
    public List<FusedHead> getHeads() {
        return heads;
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
