package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.gradient.GradientFlow;
import io.djltp.gradient.GradientGroups;
import io.djltp.layout.Region;
import io.djltp.layout.ShardedLayout;
import io.djltp.loss.ShardedPredictions;
import io.djltp.parameters.ShardedArray;
import io.djltp.rank.RankPool;
import io.djltp.torch.Autograd;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
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
    private final transient List<LossOfPass> losses = new ArrayList<>();
    private boolean consumed;

    /**
     * A loss of the pass: a network may have several, such as one for each kind of labels.
     *
     * @param labels the labels
     * @param leaf the loss of the whole batch, to the coordinator
     * @param parts the loss of each rank of this process, and what it counts for
     * @param uses how it depends on the parameters, see {@link GradientFlow}
     */
    private record LossOfPass(
            NDList labels, NDArray leaf, List<Part> parts, Map<Parameter, Boolean> uses) {

        record Part(NDArray loss, float share) {}

        /** Returns what a backward pass multiplies the loss with, or NaN if none has reached it. */
        float above() {
            try (NDArray gradient = Autograd.gradient(leaf)) {
                return gradient == null ? Float.NaN : gradient.getFloat();
            }
        }
    }

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
            NDArray array = wholeArray(first, i, training);
            if (training && isWhole(array)) {
                array.setRequiresGradient(true); // to see whether something is computed from it
            }
            add(array);
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
                    array,
                    leading.add(layout.cut().getLength()),
                    onDemand ? () -> logits(index) : null);
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
                                        context.getMappings().gatherFromRegion(own, layout.cut());
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
        for (LossOfPass loss : losses) {
            if (sameArrays(labels, loss.labels)) {
                return loss.leaf;
            }
        }
        parts.get(0).checkUpToDate();
        ranks.runOrRefuse(
                context -> {
                    RankOutput part = parts.get(context.getLocalIndex());
                    context.resume(part.getPass());
                    lossOnRanks.evaluate(context, part, labels);
                    return null;
                });
        return setLoss(labels);
    }

    /**
     * Takes over the loss that the ranks have computed.
     *
     * @param labels the labels of the whole batch
     * @return the loss
     */
    NDArray setLoss(NDList labels) {
        NDArray leaf = Autograd.detach(parts.get(0).reported, manager);
        leaf.setRequiresGradient(true);
        List<LossOfPass.Part> ofRanks =
                parts.stream().map(part -> new LossOfPass.Part(part.loss, part.share)).toList();
        losses.add(new LossOfPass(new NDList(labels), leaf, ofRanks, parts.get(0).uses));
        return leaf;
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

    /**
     * Returns whether a backward pass of the coordinator has reached a loss, and the ranks have not
     * followed yet.
     *
     * @throws IllegalArgumentException if it has reached the predictions, which are no part of a
     *     graph
     */
    boolean isReached() {
        for (NDArray array : this) {
            try (NDArray gradient = isWhole(array) ? Autograd.gradient(array) : null) {
                if (gradient != null) {
                    throw new IllegalArgumentException(
                            "A term of what is differentiated was computed from the predictions "
                                    + array.getShape()
                                    + " outside of the loss: they are values, whose graph the ranks"
                                    + " have. Let the loss of the training configuration compute"
                                    + " the term, such as one of a SimpleCompositeLoss");
                }
            }
        }
        return !consumed && losses.stream().anyMatch(loss -> !Float.isNaN(loss.above()));
    }

    /** Returns whether an array holds numbers: slices have a stand-in. */
    private static boolean isWhole(NDArray array) {
        return !Proxy.isProxyClass(array.getClass()) && array.getDataType().isFloating();
    }

    /**
     * Runs the ranks' backward passes.
     *
     * @param groups gets how the losses that were reached depend on the parameters
     */
    void backward(GradientGroups groups) {
        List<LossOfPass> reached = new ArrayList<>();
        for (LossOfPass loss : losses) {
            if (!Float.isNaN(loss.above())) {
                groups.add(loss.uses);
                reached.add(loss);
            }
        }
        consumed = true;
        ranks.run(
                context -> {
                    RankOutput part = parts.get(context.getLocalIndex());
                    try (NDManager scope = part.manager.newSubManager()) {
                        backward(reached, context.getLocalIndex(), scope);
                    } finally {
                        context.getGradientKeeper().clearTaken();
                        part.closeScopes();
                    }
                    return null;
                });
    }

    /** Several losses of one graph are differentiated as their sum: it is used up by that. */
    private static void backward(List<LossOfPass> reached, int index, NDManager scope) {
        NDArray sum = null;
        NDArray seed = null;
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            for (LossOfPass loss : reached) {
                LossOfPass.Part part = loss.parts.get(index);
                NDArray factor = scope.create(loss.above() * part.share());
                NDArray own = part.loss();
                if (reached.size() == 1) {
                    sum = own;
                    seed = factor;
                } else {
                    NDArray scaled = own.mul(factor);
                    sum = sum == null ? scaled : sum.add(scaled);
                    seed = scope.create(1f);
                }
            }
        }
        Autograd.backward(sum, seed.reshape(sum.getShape()));
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
