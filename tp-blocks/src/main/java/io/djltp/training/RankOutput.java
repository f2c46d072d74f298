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

    final NDList arrays;
    final boolean batchCut; // whether the rank has its rows only, or all
    private final List<ShardedLayout> layouts = new ArrayList<>(); // null where not cut
    NDArray loss; // of the rank's part of the batch
    NDArray reported; // the loss of the whole batch
    float share = 1; // what the rank's loss counts for in the loss of the batch

    private final NDManager scope;

    /**
     * Creates the output.
     *
     * @param arrays the output arrays
     * @param context the rank
     * @param scope what the forward pass has made, needed until the backward pass is done
     */
    RankOutput(NDList arrays, ParallelContext context, NDManager scope) {
        this.arrays = arrays;
        this.scope = scope;
        batchCut = context.isBatchSharded();
        for (NDArray array : arrays) {
            layouts.add(context.getLayout(array));
        }
    }

    ShardedLayout getLayout(int index) {
        return layouts.get(index);
    }

    boolean isSharded() {
        return layouts.stream().anyMatch(layout -> layout != null);
    }

    /** Frees what only the backward pass has needed. */
    void closeScope() {
        scope.close();
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
