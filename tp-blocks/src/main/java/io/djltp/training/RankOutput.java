package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.layout.DeferredHead;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** What one rank keeps of a forward pass: its output and its loss, with their graph. */
final class RankOutput {

    final NDManager manager; // of what is kept, on the rank's device
    final NDList arrays = new NDList();
    NDArray loss; // of the rank's part of the batch, or of the whole
    NDArray reported; // the loss of the whole batch
    RuntimeException refusal; // what this rank alone has refused of its rows, or null
    RuntimeException inPlace; // what is wrong if ranks share what it was computed of, or null
    double share = 1; // what the rank's loss counts for in the loss of the batch
    Map<Parameter, PartialAxes> uses = Map.of(); // how the loss depends on parameters

    private final List<Region> regions = new ArrayList<>();
    private final List<Shape> wholeRows = new ArrayList<>();
    private final List<ShardedLayout> layouts = new ArrayList<>(); // null where not cut by class
    private final NDList placed = new NDList(); // the arrays as losses get them
    private final List<Long> updates = new ArrayList<>(); // of the heads at the forward pass
    private final List<NDManager> scopes = new ArrayList<>();
    private ForwardPass pass;

    /**
     * Begins an output.
     *
     * @param parent the manager of what all ranks keep of the pass
     * @param context the rank
     */
    RankOutput(NDManager parent, ParallelContext context) {
        manager = parent.newSubManager(context.getDevice());
    }

    /**
     * Takes over what the forward pass has computed.
     *
     * @param output the output arrays
     * @param context the rank
     */
    void setArrays(NDList output, ParallelContext context) {
        pass = context.getPass();
        boolean alone = context.getSize() == 1;
        for (NDArray array : output) {
            Region region =
                    alone && pass.layoutOf(array) == null ? Region.WHOLE : pass.regionOf(array);
            checkTokens(region, array);
            pass.checkOutput(array);
            ShardedLayout layout = region.isShard() ? pass.layoutOf(array) : null;
            if (region.isShard() && layout == null) {
                throw new IllegalArgumentException(
                        "Output "
                                + arrays.size()
                                + " of the network, here "
                                + array.getShape()
                                + ", is computed from a slice of the features, and it is not known"
                                + " how the whole is sharded: let the block that has taken the"
                                + " slice enter it again (enterSlice)");
            }
            boolean spare = region.isRowsCut() && pass.getRows() == 0; // a row that does not count
            NDArray raw = DelegatedArray.unwrap(array);
            NDArray kept = // a handle: the array may be another output too, or a parameter
                    spare ? raw.get(new NDIndex().addSliceDim(0, 0)) : Autograd.handle(raw);
            kept.setName(array.getName());
            kept.attach(manager);
            placed.add(pass.placed(kept, array));
            if (layout != null) {
                pass.setLayout(kept, layout); // it is no longer known by its manager
            }
            arrays.add(kept);
            regions.add(region);
            wholeRows.add(wholeRows(raw.getShape(), region));
            layouts.add(layout);
            updates.add(updates(layout));
        }
        pass.getHeads().forEach(this::checkIsOutput);
    }

    private Shape wholeRows(Shape own, Region region) {
        if (!region.isRowsCut() || own.dimension() == 0) {
            return own;
        }
        long times = own.get(0) / Math.max(1, pass.getRows()); // a row may have become several
        return new Shape(times * pass.getGlobalRows()).addAll(own.slice(1));
    }

    private void checkTokens(Region region, NDArray array) {
        if (region.isTokensCut()) {
            throw new IllegalArgumentException(
                    "Output "
                            + arrays.size()
                            + " of the network, here "
                            + array.getShape()
                            + ", has this rank's tokens only: end the sequence-parallel region"
                            + " with a SequenceGather, or with a ColumnParallelLinear with"
                            + " optSequenceParallel(true)");
        }
    }

    /** Returns an output as losses get it: with its placement. */
    NDArray getPlaced(int index) {
        return placed.get(index);
    }

    /** Returns the outputs as losses get them. */
    NDList getPlaced() {
        return placed;
    }

    /** What a head returns are its features: as the input of anything else they are wrong. */
    private void checkIsOutput(DeferredHead head) {
        if (layouts.stream().noneMatch(layout -> layout != null && layout.head() == head)) {
            throw new IllegalArgumentException(
                    "The logits of the fused head with the weight "
                            + head.getShape()
                            + " are never computed, and its output must be, as it is, an output of"
                            + " the network. Another block or operation follows it here. Build it"
                            + " with optFusedLoss(false), or remove what follows");
        }
    }

    private static long updates(ShardedLayout layout) {
        return layout == null || layout.head() == null ? 0 : layout.head().getUpdates();
    }

    ForwardPass getPass() {
        return pass;
    }

    ShardedLayout getLayout(int index) {
        return layouts.get(index);
    }

    /** Returns the shape of an output with the features of all ranks, and the rows of this one. */
    Shape getWholeFeatures(int index) {
        Shape shape = arrays.get(index).getShape();
        ShardedLayout layout = layouts.get(index);
        return layout == null || layout.head() != null
                ? shape
                : shape.slice(0, shape.dimension() - 1).add(layout.cut().getLength());
    }

    /** Returns the shape of an output with the rows of all ranks, and the features of this one. */
    Shape getWholeRows(int index) {
        return wholeRows.get(index);
    }

    Region getRegion(int index) {
        return regions.get(index);
    }

    boolean isSharded() {
        return regions.stream().anyMatch(Region::isShard);
    }

    /** Returns whether an output are the features of a fused head, whose logits nobody has. */
    boolean isDeferred() {
        return !getHeads().isEmpty();
    }

    /** Returns whether the rank has its rows only of all arrays. */
    boolean isBatchCut() {
        return regions.stream().allMatch(Region::isRowsCut);
    }

    /**
     * Returns a manager for what a pass makes on the way to its result. A graph does not keep alive
     * what has been made from Java memory, such as a constant: as under DJL's own trainer, such
     * arrays live until the backward pass is done.
     */
    NDManager newScope() {
        NDManager scope = manager.newSubManager();
        scopes.add(scope);
        return scope;
    }

    /** Returns the fused heads among the layers whose output this is. */
    List<DeferredHead> getHeads() {
        return layouts.stream()
                .filter(layout -> layout != null && layout.head() != null)
                .map(ShardedLayout::head)
                .distinct()
                .toList();
    }

    /** Returns how many losses each fused head has computed until now. */
    List<Long> countLosses() {
        return getHeads().stream().map(DeferredHead::getLosses).toList();
    }

    /** Frees what only the backward pass has needed. */
    void closeScopes() {
        scopes.forEach(NDManager::close);
        scopes.clear();
    }

    /**
     * Checks that what heads compute when they are asked for can still be computed.
     *
     * @throws IllegalStateException if a step has come between, with whose weights the features of
     *     a head make no sense
     */
    void checkUpToDate() {
        for (int i = 0; i < layouts.size(); i++) {
            if (updates(layouts.get(i)) != updates.get(i)) {
                throw new IllegalStateException(
                        "The predictions of a fused head are computed when they"
                                + " are asked for, and trainer.step() has changed its weight since"
                                + " the forward pass: evaluate them before the step");
            }
        }
    }
}
