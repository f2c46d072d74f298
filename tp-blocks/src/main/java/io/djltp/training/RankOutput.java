package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import io.djltp.mesh.ParallelContext;
import io.djltp.mesh.ShardedLayout;

import java.util.ArrayList;
import java.util.List;

/** What one rank keeps of a forward pass: its output and its loss, with their graph. */
final class RankOutput {

    final NDList arrays = new NDList();
    boolean batchCut; // whether the rank has its rows only, or all
    private final List<ShardedLayout> layouts = new ArrayList<>(); // null where not cut
    private final List<Long> updates = new ArrayList<>(); // of the heads at the forward pass
    NDArray loss; // of the rank's part of the batch
    NDArray reported; // the loss of the whole batch
    float share = 1; // what the rank's loss counts for in the loss of the batch

    private final List<NDManager> scopes = new ArrayList<>();

    /**
     * Takes over what the forward pass has computed.
     *
     * @param output the output arrays
     * @param context the rank
     */
    void setArrays(NDList output, ParallelContext context) {
        arrays.addAll(output);
        batchCut = context.isBatchSharded();
        for (NDArray array : arrays) {
            ShardedLayout layout = context.getLayout(array);
            layouts.add(layout);
            updates.add(updates(layout));
        }
    }

    private static long updates(ShardedLayout layout) {
        return layout == null || layout.head() == null ? 0 : layout.head().getUpdates();
    }

    ShardedLayout getLayout(int index) {
        return layouts.get(index);
    }

    boolean isSharded() {
        return layouts.stream().anyMatch(layout -> layout != null);
    }

    /**
     * Returns a manager for what a pass makes on the way to its result. A graph does not keep alive
     * what has been made from Java memory, such as a constant: as under DJL's own trainer, such
     * arrays live until the backward pass is done.
     */
    NDManager newScope(NDManager manager, ParallelContext context) {
        NDManager scope = manager.newSubManager(context.getDevice());
        scopes.add(scope);
        return scope;
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
                        "The predictions of a layer with optFusedLoss(true) are computed when they"
                                + " are asked for, and trainer.step() has changed its weight since"
                                + " the forward pass: evaluate them before the step");
            }
        }
    }

    /** Tells the rank again how the arrays are cut: another forward pass may have come between. */
    void restoreLayouts(ParallelContext context) {
        for (int i = 0; i < layouts.size(); i++) {
            if (layouts.get(i) != null) {
                context.setLayout(arrays.get(i), layouts.get(i));
            }
        }
    }
}
