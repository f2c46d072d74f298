package io.djltp.internal.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.Region.Rows;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchOperations;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.LongSupplier;

/**
 * A forward pass of a rank: how its arrays are placed over the ranks, and with which placement
 * parameters were used.
 *
 * <p>Blocks get arrays that carry their placement. An operation passes it on. A layer that shares
 * out or puts together an array takes its input, computes, and says where the result is:
 *
 * <table>
 * <caption>What a layer computes, and how</caption>
 * <tr><th>a layer of</th><th>takes its input by</th><th>and enters the result by</th></tr>
 * <tr><td>all features of each row</td><td>{@link #ofLastAxis}</td><td>{@link #enterLike}</td></tr>
 * <tr><td>its slice, to the same slice</td><td>{@link #takeLast}</td><td>{@link #enterLike}</td></tr>
 * <tr><td>its slice, to another one</td><td>{@link #take}, {@link #takeSlice}</td><td>{@link
 * #enterSlice}</td></tr>
 * <tr><td>its slice, to the sum over ranks</td><td>{@link #take}</td><td>{@link #enter}</td></tr>
 * <tr><td>the rows of all ranks</td><td>{@link #takeRows}</td><td>{@link #enterLike}, {@link
 * #enterGathered}, {@link #enterScattered}</td></tr>
 * </table>
 *
 * <p>{@code ofLastAxis} and {@code takeLast} return arrays of the engine, which carry no placement.
 * All that is computed of them alone counts as the rows that the rank had when the pass began: only
 * {@code enterLike} knows that a layer has gathered the batch since.
 */
public class ForwardPass {

    private final long globalRows;
    private final long rows;
    private final int sharing;
    private final boolean overlaid;
    private final boolean guarded;
    private final int tensorRank;
    private final @Nullable NDManager manager; // or null: arrays are those of the caller
    private final Region start;
    private Region present; // of what is computed where blocks get the caller's arrays
    private final Map<NDArray, Placement> noted = new IdentityHashMap<>();
    private final Map<Parameter, Set<Region>> uses = new HashMap<>();
    private final Map<Parameter, Set<Region>> assumed = new HashMap<>(); // of no placement
    private final List<DeferredHead> heads = new ArrayList<>();
    private final List<NDArray> shared = new ArrayList<>();
    private @Nullable String tokenPart; // the rank's tokens, where they were sharded last
    private Function<NDArray, @Nullable RuntimeException> foreign = array -> null;
    private Function<Parameter, @Nullable Shard> shards = parameter -> null;
    private boolean gathered;
    private boolean training = true; // unless a trainer says that it evaluates
    private boolean placing;
    private boolean lossOfParts;
    private boolean batchShared; // the ranks compute with views of the caller's arrays
    private long structure = 17; // of what was computed

    /**
     * How a parameter is sharded.
     *
     * @param cut which ranges each rank has
     * @param axis of which axis
     */
    public record Shard(Cut cut, int axis) {}

    /**
     * Begins a pass.
     *
     * @param globalRows the number of rows of the batch over all ranks
     * @param rows the number of rows that count on this rank
     * @param sharing the number of ranks that share the rows; 1 if this rank has all of them
     * @param overlaid whether features are sharded over the same ranks as rows
     * @param manager the manager of the arrays that blocks get, which carry their placement, or
     *     {@code null} if blocks get the caller's own arrays
     * @param guarded whether random numbers must not be drawn where several ranks compute alike
     * @param tensorRank this rank in the group that features are sharded over
     */
    public ForwardPass(
            long globalRows,
            long rows,
            int sharing,
            boolean overlaid,
            @Nullable NDManager manager,
            boolean guarded,
            int tensorRank) {
        this.globalRows = globalRows;
        this.rows = rows;
        this.sharing = sharing;
        this.overlaid = overlaid;
        this.guarded = guarded;
        this.manager = manager;
        this.tensorRank = tensorRank;
        placing = manager != null;
        start = new Region(sharing > 1 ? Rows.CUT : Rows.WHOLE, Features.REPLICATED);
        present = start;
    }

    /** Loads the classes that carry placements: some 40 ms, before the first pass needs them. */
    public static void load() {
        PlacedArray.load();
        PlacedOperation.load();
    }

    /** {@return the number of rows of the batch over all ranks} */
    public long getGlobalRows() {
        return globalRows;
    }

    /** {@return which rows of the batch each rank has, where the batch is sharded} */
    public Cut getBatchCut() {
        return getBatchCut(sharing);
    }

    /**
     * Returns which rows of the batch each rank has where a layer shards it again.
     *
     * @param ranks the number of ranks over which it is sharded
     * @return the cut of axis 0 of the batch
     */
    public Cut getBatchCut(int ranks) {
        return Cut.balanced(globalRows, ranks);
    }

    /**
     * Returns which rows of an array of all rows each rank has. A row of the batch may have become
     * several, such as the tokens of a text.
     *
     * @param ranks the number of ranks over which the batch is sharded
     * @param all the number of rows of the array
     * @return the cut of axis 0 of the array, or of the batch if the array is none of its rows
     */
    public Cut getRowCut(int ranks, long all) {
        Cut batch = getBatchCut(ranks);
        if (globalRows == 0 || all % globalRows != 0) {
            return batch;
        }
        long each = all / globalRows;
        return Cut.ofLengths(
                Arrays.stream(batch.getShardLengths()).map(rows -> rows * each).toArray());
    }

    /**
     * Returns the number of rows of the batch that count on this rank. If the batch has fewer rows
     * than ranks, idle ranks compute a row of another rank, which is discarded.
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
     * Returns the rows of an array that count: none on a rank that computes a row of another one.
     *
     * @param array this rank's rows
     * @return the array, or its first 0 rows
     */
    public NDArray countedRows(NDArray array) {
        if (rows > 0) {
            return array;
        }
        NDArray none = DelegatedArray.unwrap(array).get(new NDIndex().addSliceDim(0, 0));
        Placement placement = PlacedArray.placementOf(array);
        return placement == null ? none : PlacedArray.of(none, placement, this);
    }

    /** {@return whether rows have to be gathered before features can be sharded} */
    public boolean isOverlaid() {
        return overlaid;
    }

    /**
     * Sets what the pass is for.
     *
     * @param train whether a backward pass may follow
     * @param check what to throw if a block computes with an array of a parameter that is not the
     *     rank's
     * @param shardOf how a parameter is sharded
     * @param several whether several ranks share the arrays of the batch, which blocks must not
     *     change in place then
     */
    public final void setPurpose(
            boolean train,
            Function<NDArray, @Nullable RuntimeException> check,
            Function<Parameter, @Nullable Shard> shardOf,
            boolean several) {
        training = train;
        batchShared = several;
        foreign = check;
        shards = shardOf;
    }

    final Function<Parameter, @Nullable Shard> getShards() {
        return shards;
    }

    final Function<NDArray, @Nullable RuntimeException> getForeign() {
        return foreign;
    }

    /** {@return whether a backward pass may follow} */
    public boolean isTraining() {
        return training;
    }

    /** {@return whether blocks get arrays that carry their placement} */
    public boolean isPlacing() {
        return placing;
    }

    /**
     * Sets whether blocks get arrays that carry their placement.
     *
     * @param carried whether they do
     */
    public void setPlacing(boolean carried) {
        placing = carried && manager != null;
    }

    // ---- arrays

    /**
     * Returns arrays of the batch as blocks get them.
     *
     * @param arrays this rank's part of the arrays
     * @param whole whether all ranks have the same
     * @return the arrays with their placement
     */
    public NDList place(NDList arrays, boolean whole) {
        if (!placing) {
            return arrays;
        }
        Region region = whole ? Region.WHOLE : start;
        NDList placed = new NDList(arrays.size());
        for (NDArray array : arrays) {
            Placement placement = Placement.ofBatch(region, array.getShape());
            placed.add(
                    batchShared
                            ? PlacedArray.ofCaller(array, placement, this)
                            : PlacedArray.of(array, placement, this));
        }
        return placed;
    }

    /**
     * Returns a parameter as blocks get it.
     *
     * @param parameter the parameter
     * @param value what this rank holds of it
     * @param followed whether operations are checked that a block computes with a shard; else the
     *     block answers for them, and sees the shape of the shard
     * @return the array with its placement
     */
    public NDArray place(Parameter parameter, NDArray value, boolean followed) {
        note(System.identityHashCode(parameter) + (parameter.requiresGradient() ? 1 : 0));
        if (!placing) {
            if (parameter.requiresGradient() && followed) {
                assumed.computeIfAbsent(parameter, key -> new HashSet<>()).add(present);
            }
            return value;
        }
        boolean sharded = !value.getShape().equals(parameter.getShape());
        Set<Parameter> trained = parameter.requiresGradient() ? Set.of(parameter) : Set.of();
        Placement placement = Placement.ofParameters(trained, sharded);
        Shard shard = sharded && followed ? shards.apply(parameter) : null;
        if (shard != null) {
            String name = "Parameter " + parameter.getName() + " " + parameter.getShape();
            placement = Placement.ofShard(trained, shard.cut(), shard.axis(), name);
        }
        return PlacedArray.of(value, placement, this);
    }

    Placement placementOf(NDArray array) {
        Placement placement = PlacedArray.placementOf(array);
        if (placement == null) {
            placement = noted.get(array);
        }
        return placement == null
                ? Placement.ofBatch(present, array.getShape()).computed(true, null)
                : placement;
    }

    NDArray put(NDArray array, Placement placement) {
        if (PlacedArray.set(array, placement)) {
            return array;
        }
        if (placing) {
            return PlacedArray.of(array, placement, this);
        }
        noted.put(array, placement);
        present = manager == null ? start : placement.region();
        return array;
    }

    /**
     * Returns how an array is placed over the axes of the mesh.
     *
     * @param array the array
     * @return the placement
     */
    public Region regionOf(NDArray array) {
        Placement placement = placementOf(array);
        return placement.isOfBatch() || placement.isFollowed() ? placement.region() : start;
    }

    /**
     * Returns how the features are sharded of which an array is this rank's part.
     *
     * @param array the array
     * @return the layout, or {@code null} if the features are whole, or taken by a block
     */
    public @Nullable ShardedLayout layoutOf(NDArray array) {
        return placementOf(array).layout();
    }

    /**
     * Notes again that an array is this rank's shard of a larger one.
     *
     * @param array the array of the engine
     * @param layout how the features are sharded
     */
    public void setLayout(NDArray array, ShardedLayout layout) {
        Shape shape = DelegatedArray.unwrap(array).getShape();
        Placement placement = computed(array).withFeatures(layout, shape, "An output");
        if (!PlacedArray.set(array, placement)) {
            noted.put(array, placement);
        }
    }

    // ---- what layers say

    /**
     * Takes an array that a layer has computed to another placement of its features.
     *
     * @param array the array
     * @param features how its features are placed
     * @return the array
     */
    public NDArray enter(NDArray array, Features features) {
        return put(array, computed(array).with(features));
    }

    /**
     * Takes an array to where rows are sharded that is made of parameters alone, such as one row
     * that is broadcast.
     *
     * @param array an array
     * @return the array
     */
    public NDArray enterRows(NDArray array) {
        return placementOf(array).isOfBatch() ? array : put(array, computed(array));
    }

    /** Returns the placement of what a layer has computed, to be placed by it. */
    private Placement computed(NDArray array) {
        Placement before = placementOf(array);
        if (!before.isOfBatch()) {
            Region region = overlaid && gathered ? Region.WHOLE : start;
            before.made().forEach(each -> use(each, region));
            return Placement.ofBatch(region, new Shape()).computed(true, null);
        }
        settle(before);
        return before.taken().computed(true, null);
    }

    private void settle(Placement placement) {
        if (placement.uses() != null) {
            placement.uses().settle(placement.region(), this);
        }
    }

    /**
     * Takes the rows of all ranks that a layer has gathered to where rows are whole.
     *
     * @param array the rows
     * @return the array
     */
    public NDArray enterGathered(NDArray array) {
        gathered = true;
        checkOrder(array);
        return put(array, computed(array).withRows(Rows.WHOLE, array.getShape(), 0));
    }

    /**
     * Takes this rank's rows of a sum over the ranks to where rows are sharded.
     *
     * @param array this rank's rows
     * @param all the rows of all ranks
     * @return the array; on a rank without a row, a row that does not count
     */
    public NDArray enterScattered(NDArray array, long all) {
        NDArray own = array;
        if (rows == 0) {
            Shape raw = DelegatedArray.unwrap(array).getShape();
            Shape shape = new Shape(all / globalRows).addAll(raw.slice(1));
            NDArray empty = DelegatedArray.unwrap(array);
            NDArray zeros = empty.getManager().zeros(shape, empty.getDataType());
            // the empty one stays in the graph, so that backward all ranks do alike
            own = TorchOperations.concat(new NDList(empty, zeros), 0);
        }
        Placement placement = computed(array).with(Features.REPLICATED);
        return put(own, placement.withRows(start.rows(), own.getShape(), Math.max(1, rows)));
    }

    /**
     * Takes an array to where features are sharded.
     *
     * @param array this rank's shard of the last axis, or the features of a head
     * @param layout how the whole is sharded
     * @param layer the layer, for errors
     * @return the array
     */
    public NDArray enterSlice(NDArray array, ShardedLayout layout, String layer) {
        Shape shape = DelegatedArray.unwrap(array).getShape();
        if (layout.head() != null) {
            heads.add(layout.head());
        }
        return put(array, computed(array).withFeatures(layout, shape, "The output of " + layer));
    }

    /**
     * Takes a shard into a block that may divide it, such as into heads. The block answers for what
     * it computes of the result, until it enters it again ({@link #enterSlice}).
     *
     * @param slice this rank's shard of the last axis
     * @param cut how the block needs it sharded
     * @param rank this rank in the group that the features are sharded over
     * @param block the block, for errors
     * @return a view of the shard
     * @throws IllegalArgumentException if the array is no shard, or is sharded otherwise
     */
    public NDArray takeSlice(NDArray slice, Cut cut, int rank, String block) {
        Placement placement = placementOf(slice);
        ShardedLayout layout = placement.layout();
        NDArray raw = DelegatedArray.unwrap(slice);
        long[] shape = raw.getShape().getShape();
        if (!placement.region().isShard()
                || layout != null && !layout.cut().equals(cut)
                || shape[shape.length - 1] != cut.getShardLength(rank)) {
            throw Errors.argument(
                    "%s needs a slice of the features that is cut over the ranks as %s, and gets"
                            + " %s%s: let a layer with that cut come before it",
                    block,
                    cut,
                    slice.getShape(),
                    layout != null
                            ? ", cut as " + layout.cut()
                            : placement.region().isShard() ? ", a slice" : ", which is whole");
        }
        return put(raw.reshape(raw.getShape()), placement.taken());
    }

    /**
     * Takes a shard into a block that answers for what it computes of it.
     *
     * @param shard this rank's part
     * @return the part, with the shape that it has on this rank
     */
    public NDArray take(NDArray shard) {
        Placement placement = PlacedArray.placementOf(shard);
        return placement == null
                ? shard
                : PlacedArray.of(DelegatedArray.unwrap(shard), placement.taken(), this);
    }

    /**
     * Takes this rank's rows into a block that answers for what it computes of all rows.
     *
     * @param rows this rank's rows
     * @return the rows, which operations may reduce
     */
    public NDArray takeRows(NDArray rows) {
        Placement placement = placementOf(rows);
        Placement taken = placement.at(placement.features(), placement.tokensAt(), null);
        return placing ? PlacedArray.of(DelegatedArray.unwrap(rows), taken, this) : rows;
    }

    /**
     * Returns an array that a layer has computed, whose placement is that of another one.
     *
     * @param array the array
     * @param input what it was computed of
     * @param used the parameters that it was computed with, {@code null} for none
     * @return the array with its placement
     */
    public NDArray enterLike(NDArray array, NDArray input, @Nullable Parameter... used) {
        Placement given = placementOf(input);
        Placement like = given.isOfBatch() ? given : computed(input); // rows made of parameters
        Set<Parameter> trained = new HashSet<>();
        for (Parameter parameter : used) {
            if (parameter != null && parameter.requiresGradient()) {
                trained.add(parameter);
            }
        }
        Placement before = PlacedArray.placementOf(array);
        Placement.Uses uses =
                Placement.Uses.join(like.uses(), before == null ? null : before.uses());
        if (!trained.isEmpty()) {
            uses = new Placement.Uses(trained, uses == null ? List.of() : List.of(uses));
        }
        if (uses != null && like.region().isShard()) {
            uses.settle(like.region(), this);
            uses = null;
        }
        return put(array, like.computed(like.behind(), uses));
    }

    /**
     * Notes that an array was computed of another one, too.
     *
     * @param array an array that a layer has computed by other means than DJL's operations
     * @param other what it was computed of, besides what its manager says
     * @return the array with its placement
     */
    public NDArray join(NDArray array, NDArray other) {
        Placement placement = PlacedArray.placementOf(array);
        Placement more = PlacedArray.placementOf(other);
        if (placement == null || more == null || more.uses() == null) {
            return array;
        }
        Placement.Uses uses = Placement.Uses.join(placement.uses(), more.uses());
        return put(array, placement.computed(placement.behind(), uses));
    }

    /**
     * Takes a shard of the last axis into a layer or a loss that computes of shards.
     *
     * @param array the shard
     * @return the array of the engine
     * @throws IllegalArgumentException if the features are no longer the last axis, in their order
     */
    public NDArray takeLast(NDArray array) {
        Placement placement = placementOf(array);
        NDArray raw = DelegatedArray.unwrap(array);
        Shape shape = raw.getShape();
        if (placement.features() != null && !placement.features().isLast(shape.dimension())) {
            throw PlacementErrors.moved(placement, shape);
        }
        return raw;
    }

    /**
     * Takes an array into a computation over its last axis.
     *
     * @param array the array
     * @param name what computes, for errors
     * @return the array of the engine
     * @throws IllegalArgumentException if ranks share out the last axis
     */
    public NDArray ofLastAxis(NDArray array, String name) {
        Placement placement = placementOf(array);
        NDArray raw = DelegatedArray.unwrap(array);
        int last = raw.getShape().dimension() - 1;
        boolean shared =
                placement.isHead()
                        || placement.features() != null && placement.features().axis() == last
                        || placement.tokensAt() != null && placement.tokensAt().axis() == last;
        if (shared) {
            throw PlacementErrors.mixes(name, placement, raw.getShape());
        }
        return raw;
    }

    /**
     * Returns whether the features of a shard are the last elements of an array, such as those of
     * heads [.., heads, d].
     *
     * @param array the array
     * @return whether they are, or are whole
     */
    public boolean endsWithFeatures(NDArray array) {
        Placement placement = placementOf(array);
        Shape shape = DelegatedArray.unwrap(array).getShape();
        return placement.features() == null
                || placement.features().outer() == 1
                        && shape.slice(placement.features().axis()).size()
                                == placement.ownFeatures(shape);
    }

    /**
     * Checks that features are sharded as a layer needs them. Features of another length, such as
     * heads, are if ranks have the same shares.
     *
     * @param array the input of the layer
     * @param cut how the layer needs them sharded
     * @param layer the layer, for errors
     * @throws IllegalArgumentException if they are not
     */
    public void checkSharded(NDArray array, Cut cut, String layer) {
        Placement placement = placementOf(array);
        Cut given = placement.layout() == null ? cut : placement.layout().cut();
        boolean same = given.equals(cut);
        if (!same && (given.getLength() == cut.getLength() || !placement.hasSameShares(cut))) {
            throw Errors.argument(
                    "%s has its input features cut as %s. %s, which it follows, is cut as %s:"
                            + " give both the same cut, by optShardingStrategy, or build the"
                            + " first with optGatherOutput(true) and this layer with"
                            + " optInputIsParallel(false)",
                    layer, cut, placement.layer(), given);
        }
    }

    /**
     * Checks that the rows of an array are in the order of the batch.
     *
     * @param array an output, or an array whose rows are to be gathered
     * @throws IllegalArgumentException if they are not
     */
    public void checkOrder(NDArray array) {
        checkOrder(array, placementOf(array));
    }

    /**
     * Checks that the whole of an output can be put together.
     *
     * @param array an output
     * @throws IllegalArgumentException if its features or rows are elsewhere, or in another order
     */
    public void checkOutput(NDArray array) {
        Placement placement = placementOf(array);
        checkOrder(array, placement);
        takeLast(array);
        if (!placement.isOfBatch()) {
            placement.made().forEach(each -> use(each, start));
        }
    }

    private static void checkOrder(NDArray array, Placement placement) {
        if (placement.rows() != null
                && placement.rows().axis() == 0
                && (placement.isFlipped() || placement.rows().outer() > 1)) {
            throw PlacementErrors.rowOrder(placement, array.getShape());
        }
    }

    /**
     * Returns the first axis of the rank's rows.
     *
     * @param array an array
     * @return the axis, or -1 if it is not known or if all ranks have all rows
     */
    public int rowAxisOf(NDArray array) {
        Placement.AxisPart at = placementOf(array).rows();
        return at == null ? -1 : at.outer() == 1 ? at.axis() : at.axis() + 1;
    }

    /**
     * Returns the rows of all ranks of an output as a loss gets them.
     *
     * @param array the rows of all ranks
     * @param own this rank's rows
     * @return the array with its placement
     */
    public NDArray gathered(NDArray array, NDArray own) {
        Placement before = placementOf(own);
        settle(before);
        return put(array, before.withRows(Rows.WHOLE, array.getShape(), 0).computed(true, null));
    }

    /**
     * Returns arrays of the engine, whose placements are noted.
     *
     * @param arrays arrays that carry their placement
     * @return the arrays of the engine
     */
    public NDList unplace(NDList arrays) {
        NDList raws = new NDList(arrays.size());
        for (NDArray array : arrays) {
            NDArray raw = DelegatedArray.unwrap(array);
            noted.put(raw, placementOf(array));
            raws.add(raw);
        }
        return raws;
    }

    /**
     * Returns labels as a loss gets them.
     *
     * @param labels the labels of the rows of the predictions
     * @param predictions the predictions as a loss gets them
     * @return the labels with their placement
     */
    public NDList place(NDList labels, NDList predictions) {
        for (NDArray each : predictions) {
            Placement placement = PlacedArray.placementOf(each);
            if (placement != null && placement.isOfBatch()) {
                return place(labels, !placement.region().isRowsCut());
            }
        }
        return place(labels, !start.isRowsCut());
    }

    /**
     * Returns the loss of a rank.
     *
     * @param loss what a loss has computed
     * @return the array of the engine
     * @throws IllegalArgumentException if it is a part of something
     */
    public NDArray takeLoss(NDArray loss) {
        Placement placement = PlacedArray.placementOf(loss);
        NDArray raw = DelegatedArray.unwrap(loss);
        if (placement != null && placement.isFollowed()) {
            throw PlacementErrors.mixes("a loss", placement, raw.getShape());
        }
        if (placement != null) {
            settle(placement);
        }
        return raw;
    }

    /**
     * Returns a loss of sharded predictions as other losses get it.
     *
     * @param loss the loss, the same on all ranks that share the predictions
     * @param predictions the predictions
     * @return the loss with its placement
     */
    public NDArray enterLoss(NDArray loss, NDArray predictions) {
        Placement before = PlacedArray.placementOf(predictions);
        if (before == null) {
            return loss;
        }
        settle(before);
        Region region = new Region(before.region().rows(), Features.REPLICATED);
        Placement placement = Placement.ofBatch(region, new Shape()).computed(true, null);
        return PlacedArray.of(DelegatedArray.unwrap(loss), placement, this);
    }

    /**
     * Returns an output as a loss gets it.
     *
     * @param array the array of the engine
     * @param like the array that the network has returned
     * @return the array with its placement
     */
    public NDArray placed(NDArray array, NDArray like) {
        Placement placement = PlacedArray.placementOf(like);
        return placement == null || !placing ? array : PlacedArray.of(array, placement, this);
    }

    /**
     * Notes that an array has entered a region of slices for several layers.
     *
     * @param array the array
     */
    public void share(NDArray array) {
        shared.add(array);
    }

    /**
     * Returns whether an array has entered a region of slices before a layer got it.
     *
     * @param array the input of a layer
     * @return whether the layer must not enter the region itself
     */
    public boolean isShared(NDArray array) {
        return shared.stream().anyMatch(each -> each == array);
    }

    // ---- sequence parallelism

    /**
     * Takes this rank's tokens to where tokens are sharded.
     *
     * @param array this rank's tokens, with all features
     * @param cut how the tokens are sharded
     * @return the array
     */
    public NDArray enterTokens(NDArray array, TokenCut cut) {
        Shape shape = DelegatedArray.unwrap(array).getShape();
        tokenPart = shape + " of " + cut.cut().getLength();
        return put(array, computed(array).withTokens(cut, shape));
    }

    /**
     * Takes the tokens of all ranks that a layer has gathered to where tokens are whole.
     *
     * @param array all tokens
     * @return the array
     */
    public NDArray leaveTokens(NDArray array) {
        return put(array, computed(array).withTokens(null, null));
    }

    /**
     * Returns how the tokens are sharded of which an array is this rank's part.
     *
     * @param array the array
     * @return the cut, or {@code null} if all tokens are there
     */
    public @Nullable TokenCut tokensOf(NDArray array) {
        return placementOf(array).tokens();
    }

    // ---- parts that are computed again in the backward pass

    /** {@return whether the pass is one of a part that is computed twice} */
    public boolean isRepeated() {
        return false;
    }

    /**
     * Returns what the random numbers of a block follow from in its present call: where a part of a
     * network is computed again, what they have followed from before.
     *
     * @param fresh gives the key of a call that was not computed before
     * @return the key
     */
    public long keyOf(LongSupplier fresh) {
        return fresh.getAsLong();
    }

    /**
     * Throws if what a block keeps of the pass would come twice.
     *
     * @param what what keeps something
     * @throws IllegalArgumentException if it does so in a part that is computed again
     */
    public void checkKeeps(String what) {
        Errors.check(
                !isRepeated(),
                "%s is in a part of the network that is recomputed (Recompute, optRecompute), and"
                        + " keeps something of each forward pass, which would come twice: let"
                        + " Recompute wrap what is before and after it, or build the layer with"
                        + " optRecompute(false)",
                what);
    }

    // ---- parameters

    /**
     * Notes that a parameter was used.
     *
     * @param parameter the parameter
     * @param region the placement of what it was used with
     */
    public void use(@Nullable Parameter parameter, Region region) {
        if (parameter != null && parameter.requiresGradient()) {
            uses.computeIfAbsent(parameter, key -> new HashSet<>(2)).add(region);
        }
    }

    /** {@return with which placements each parameter was used} */
    public Map<Parameter, Set<Region>> getUses() {
        assumed.forEach(uses::putIfAbsent);
        return uses;
    }

    /** {@return the heads that have left their output to the loss} */
    public List<DeferredHead> getHeads() {
        return heads;
    }

    // ---- operations

    /** Notes an operation, so that two passes can be compared. */
    void note(Object operation) {
        structure = 31 * structure + operation.hashCode();
    }

    long getStructure() {
        return structure;
    }

    /** Returns whether random numbers must not be drawn for an array. */
    boolean isGuarded(Placement placement) {
        return guarded && !(overlaid && placement.isOfBatch() && placement.region().isRowsCut());
    }

    /** Throws if an array that carries no placement is a parameter, or is computed of one. */
    void checkForeign(NDArray array) {
        if (placing && TensorView.of(array).requiresGradient()) {
            RuntimeException e = foreign.apply(array);
            if (e != null) {
                throw e;
            }
        }
    }

    /** Throws on all ranks if a batch normalization would get one value of a channel on one. */
    void checkBatchNorm(Placement placement, Shape shape) {
        boolean own = placement.rows() != null;
        long values = shape.size() / shape.get(1);
        if (own && rows > 0) {
            values = values / rows * Math.max(1, globalRows / sharing);
        }
        if (values < 2) {
            throw PlacementErrors.oneValue(globalRows, own ? sharing : 1);
        }
    }

    /** {@return whether a loss is computed of this rank's rows, whose mean counts for its part} */
    boolean isLossOfParts() {
        return lossOfParts;
    }

    /**
     * Sets whether a loss is computed of this rank's rows.
     *
     * @param ofParts whether it is
     */
    public void setLossOfParts(boolean ofParts) {
        lossOfParts = ofParts;
    }

    List<ShardRange> ownRanges(Cut cut) {
        return cut.getRanges(tensorRank);
    }

    int getTensorRank() {
        return tensorRank;
    }

    /** Returns whether no group of features, such as a head, is divided between ranks. */
    boolean hasWholeGroups(Cut cut, long unit) {
        for (int rank = 0; unit > 1 && rank < cut.getRanks(); rank++) {
            for (ShardRange range : cut.getRanges(rank)) {
                if (range.start() % unit != 0 || range.length() % unit != 0) {
                    return false;
                }
            }
        }
        return true;
    }

    /**
     * Adds to an exception of a block or a loss which part of the batch or of the tokens it got.
     *
     * @param e the exception
     * @return an exception with the remedy, or the same if it is not about shapes
     */
    public RuntimeException explain(RuntimeException e) {
        long[] part = start.isRowsCut() && gathered ? new long[] {rows, globalRows} : null;
        return PlacementErrors.explained(e, tokenPart, part);
    }
}
