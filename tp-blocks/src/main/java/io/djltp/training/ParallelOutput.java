package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.bridge.Autograd;
import io.djltp.loss.ShardedPredictions;
import io.djltp.mesh.RankPool;
import io.djltp.mesh.Region;
import io.djltp.mesh.ShardedLayout;

import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;

/**
 * The output of a forward pass on all ranks. To DJL it is the list of the output arrays of the
 * whole batch, none of them part of a graph; arrays that are cut over the ranks by class are
 * stand-ins. Logits that nobody has computed yet are, if they are not trained on, computed when
 * something reads them. The graphs stay with the ranks, and so does the loss.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelOutput extends NDList implements ShardedPredictions {

    private static final long serialVersionUID = 1L;

    private final transient RankPool ranks;
    private final transient NDManager manager;
    private final transient LossOnRanks lossOnRanks;
    private final transient List<RankOutput> parts;
    private transient NDList lossLabels;
    private transient NDArray loss;
    private boolean consumed;

    /**
     * Creates the output.
     *
     * @param ranks the ranks
     * @param manager the manager of what is kept of the forward pass
     * @param lossOnRanks the loss
     * @param parts the output of each rank
     * @param training whether the output is trained on
     */
    ParallelOutput(
            RankPool ranks,
            NDManager manager,
            LossOnRanks lossOnRanks,
            List<RankOutput> parts,
            boolean training) {
        this.ranks = ranks;
        this.manager = manager;
        this.lossOnRanks = lossOnRanks;
        this.parts = parts;
        RankOutput first = parts.get(0);
        for (int i = 0; i < first.arrays.size(); i++) {
            add(wholeArray(first, i, training));
        }
    }

    private NDArray wholeArray(RankOutput first, int index, boolean training) {
        NDArray array = first.arrays.get(index);
        ShardedLayout layout = first.getLayout(index);
        if (layout != null) {
            Shape shape = array.getShape();
            Shape leading = shape.slice(0, shape.dimension() - 1);
            boolean onDemand = layout.head() != null && !training;
            return ShardedArray.of(
                    array, leading.add(layout.total()), onDemand ? () -> logits(index) : null);
        }
        List<NDArray> arrays = parts.stream().map(part -> part.arrays.get(index)).toList();
        return concatenated(arrays, first.getRegion(index) == Region.BATCH_CUT);
    }

    /** Computes and gathers logits that were left to the evaluators. */
    private NDArray logits(int index) {
        parts.get(0).checkUpToDate();
        List<NDArray> wholes =
                ranks.runOrRefuse(
                        context -> {
                            RankOutput part = parts.get(context.getLocalIndex());
                            context.resume(part.getPass());
                            ShardedLayout layout = part.getLayout(index);
                            try (Autograd.GradMode mode = Autograd.gradMode(false);
                                    NDManager scope = manager.newSubManager(context.getDevice())) {
                                NDArray features = Autograd.detach(part.arrays.get(index), scope);
                                NDArray own = layout.head().logits(features);
                                NDArray whole =
                                        context.getMappings().gatherFromRegion(own, layout.total());
                                whole.attach(manager);
                                return whole;
                            }
                        });
        wholes.subList(1, wholes.size()).forEach(NDArray::close);
        return wholes.get(0);
    }

    /** Puts the ranks' rows together where the batch was cut; else all have the same. */
    private NDArray concatenated(List<NDArray> arrays, boolean batchCut) {
        if (!batchCut) {
            return Autograd.detach(arrays.get(0), manager);
        }
        if (ranks.isDistributed()) {
            return RowGather.of(ranks, arrays, manager);
        }
        try (NDManager scope = manager.newSubManager()) {
            NDList rows = new NDList();
            for (NDArray array : arrays) {
                NDArray own = Autograd.detach(array, scope);
                rows.add(own.toDevice(manager.getDevice(), false));
            }
            NDArray whole = NDArrays.concat(rows);
            whole = rows.size() == 1 ? whole.duplicate() : whole;
            whole.attach(manager);
            return whole;
        }
    }

    /**
     * Returns the loss of the whole batch: a leaf of the coordinator's graph, so that {@code
     * backward} of anything computed from it finds out what the ranks' losses are multiplied with.
     *
     * @param labels the labels of the whole batch
     * @return the loss
     */
    NDArray getLoss(NDList labels) {
        if (loss == null || !sameArrays(labels, lossLabels)) {
            parts.get(0).checkUpToDate();
            ranks.runOrRefuse(
                    context -> {
                        RankOutput part = parts.get(context.getLocalIndex());
                        context.resume(part.getPass());
                        lossOnRanks.evaluate(context, part, labels);
                        return null;
                    });
            setLoss(labels);
        }
        return loss;
    }

    /** Takes over the loss that the ranks have computed. */
    void setLoss(NDList labels) {
        loss = Autograd.detach(parts.get(0).reported, manager);
        loss.setRequiresGradient(true);
        lossLabels = new NDList(labels);
    }

    /** {@inheritDoc} */
    @Override
    public NDArray evaluateOnRanks(NDList labels, BiFunction<NDList, NDList, NDArray> evaluator) {
        parts.get(0).checkUpToDate();
        boolean cut = parts.get(0).getRegion(0) == Region.BATCH_CUT;
        if (cut && parts.get(0).getPass().hasSpareRanks()) {
            return evaluator.apply(labels, new NDList(this)); // few rows, and not on all ranks
        }
        List<NDArray> results =
                ranks.runOrRefuse(
                        context -> {
                            RankOutput part = parts.get(context.getLocalIndex());
                            context.resume(part.getPass());
                            try (NDManager scope = manager.newSubManager(context.getDevice())) {
                                long rows = cut ? part.getPass().getGlobalRows() : 0;
                                NDList own = BatchPart.of(labels, context, rows, scope);
                                return evaluator.apply(own, part.arrays);
                            }
                        });
        NDArray whole = concatenated(results, cut);
        results.forEach(NDArray::close);
        return whole;
    }

    /** Returns how the loss depends on the parameters, see {@link GradientFlow}. */
    Map<Parameter, Boolean> getUses() {
        return parts.get(0).uses;
    }

    /**
     * Returns whether a backward pass of the coordinator has reached the loss, and the ranks have
     * not followed yet.
     */
    boolean isReached() {
        if (loss == null || consumed) {
            return false;
        }
        try (NDArray gradient = Autograd.gradient(loss)) {
            return gradient != null;
        }
    }

    /** Runs the ranks' backward passes. */
    void backward() {
        float above;
        try (NDArray gradient = Autograd.gradient(loss)) {
            above = gradient.getFloat();
        }
        consumed = true;
        ranks.run(
                context -> {
                    RankOutput part = parts.get(context.getLocalIndex());
                    NDArray rankLoss = part.loss;
                    try (NDArray seed = rankLoss.onesLike();
                            NDArray scaled = seed.mul(above * part.share)) {
                        Autograd.backward(rankLoss, scaled);
                    } finally {
                        context.getGradientKeeper().clearTaken();
                        part.closeScopes();
                    }
                    return null;
                });
    }

    /** Returns whether a backward pass can still come. */
    boolean isPending() {
        return !consumed && manager.isOpen();
    }

    private static boolean sameArrays(NDList a, NDList b) {
        if (a.size() != b.size()) {
            return false;
        }
        for (int i = 0; i < a.size(); i++) {
            if (a.get(i) != b.get(i)) {
                return false;
            }
        }
        return true;
    }
}
