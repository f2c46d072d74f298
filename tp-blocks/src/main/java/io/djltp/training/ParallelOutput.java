package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.gradient.GradientGroups;
import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.TensorView;
import io.djltp.layout.ShardedLayout;
import io.djltp.loss.ShardedPredictions;
import io.djltp.parameters.ShardedArray;
import io.djltp.rank.Phase;
import io.djltp.rank.RankPool;
import io.djltp.rank.StepParticipant;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Consumer;

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
    private transient List<LossOfPass> reached = List.of(); // by what is to be differentiated
    private transient Consumer<NDList> comparison = labels -> {};
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
        if (training) { // so that terms computed from them can be found
            getPredictions().forEach(array -> array.setRequiresGradient(true));
        }
    }

    /** Sets what compares labels that come with the loss with those of other processes. */
    void setComparison(Consumer<NDList> comparison) {
        this.comparison = comparison;
    }

    private NDArray wholeArray(RankOutput first, int index, boolean training) {
        NDArray array = first.arrays.get(index);
        ShardedLayout layout = first.getLayout(index);
        if (layout != null) {
            Shape shape = first.getWholeRows(index);
            Shape leading = shape.slice(0, shape.dimension() - 1);
            boolean onDemand = layout.head() != null && !training;
            return ShardedArray.of(
                    array,
                    leading.add(layout.cut().getLength()),
                    layout.head() != null,
                    onDemand ? () -> logits(index) : null,
                    (ShardedPredictions) (labels, of) -> evaluateOnRanks(labels, of, index));
        }
        List<NDArray> arrays = parts.stream().map(part -> part.arrays.get(index)).toList();
        return concatenated(arrays, first.getRegion(index).isRowsCut());
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
        return RowGather.of(ranks, arrays, manager);
    }

    /**
     * Returns the loss of the whole batch: a leaf of the coordinator's graph, so that {@code
     * backward} of anything computed from it finds out what the ranks' losses are multiplied with.
     *
     * @param labels the labels of the whole batch
     * @return the loss
     */
    NDArray getLoss(NDList labels) {
        checkOpen();
        if (parts.get(0).getPass().isTraining()) {
            BatchPart.checkGradients("Label", labels);
        }
        for (LossOfPass loss : losses) {
            if (loss.isOf(labels)) {
                return loss.leaf();
            }
        }
        parts.get(0).checkUpToDate();
        comparison.accept(labels);
        ranks.runOrRefuse(
                context -> {
                    RankOutput part = parts.get(context.getLocalIndex());
                    context.resume(part.getPass());
                    lossOnRanks.evaluate(context, part, labels);
                    return null;
                });
        InPlaceCheck.check(ranks, parts);
        return setLoss(labels);
    }

    /**
     * Takes over the loss that the ranks have computed.
     *
     * @param labels the labels of the whole batch
     * @return the loss
     */
    NDArray setLoss(NDList labels) {
        LossOfPass loss = LossOfPass.of(labels, parts, manager, isTrainedOn());
        losses.add(loss);
        return loss.leaf();
    }

    private boolean isTrainedOn() {
        return !consumed && parts.get(0).getPass().isTraining();
    }

    /** {@inheritDoc} */
    @Override
    public NDArray evaluateOnRanks(NDList labels, BiFunction<NDList, NDList, NDArray> evaluator) {
        return evaluateOnRanks(labels, evaluator, -1);
    }

    /** Evaluates one output, or all of them together. */
    private NDArray evaluateOnRanks(
            NDList labels, BiFunction<NDList, NDList, NDArray> evaluator, int index) {
        checkOpen();
        parts.get(0).checkUpToDate();
        boolean few = parts.get(0).getPass().hasSpareRanks(); // rows, and not on all ranks
        boolean cut = parts.get(0).getRegion(Math.max(0, index)).isRowsCut() && !few;
        List<NDArray> results =
                ranks.runOrRefuse(
                        context -> {
                            RankOutput part = parts.get(context.getLocalIndex());
                            context.resume(part.getPass());
                            try (Autograd.GradMode mode = Autograd.gradMode(false);
                                    NDManager scope = manager.newSubManager(context.getDevice())) {
                                long rows = cut ? part.getPass().getGlobalRows() : 0;
                                NDList own = BatchPart.of(labels, context, rows, scope);
                                NDList all =
                                        few
                                                ? part.getPass()
                                                        .unplace(
                                                                BatchRows.gather(
                                                                        context, part, scope))
                                                : part.arrays;
                                NDArray result =
                                        lossOnRanks.evaluate(evaluator, own, only(all, index));
                                NDArray value = DelegatedArray.unwrap(result);
                                value.attach(part.manager);
                                return value;
                            }
                        });
        NDArray whole = concatenated(results, cut);
        results.forEach(NDArray::close);
        return whole;
    }

    private static NDList only(NDList outputs, int index) {
        return index < 0 ? outputs : new NDList(outputs.get(index));
    }

    /** Returns whether the caller's backward pass has reached a loss, and remembers which. */
    boolean isReached() {
        reached = losses.stream().filter(loss -> isPending() && loss.isReached()).toList();
        return !reached.isEmpty();
    }

    /** Throws if a term that was differentiated is computed from predictions. */
    void checkTerms() {
        for (NDArray array : getPredictions()) {
            try (NDArray gradient = Autograd.gradient(array)) {
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
    }

    /** Returns the predictions that hold numbers, as long as they are there. */
    private List<NDArray> getPredictions() {
        return stream().filter(array -> isPending() && isWhole(array)).toList();
    }

    /** Returns whether an array holds numbers: slices have a stand-in. */
    private static boolean isWhole(NDArray array) {
        return !ShardedArray.isStandIn(array)
                && !((NativeResource<?>) array).isReleased()
                && array.getDataType().isFloating();
    }

    /**
     * Runs the ranks' backward passes.
     *
     * @param groups gets how the losses that were reached depend on the parameters
     */
    void backward(GradientGroups groups) {
        reached.forEach(loss -> groups.add(loss.uses()));
        consumed = true;
        ranks.run(
                context -> {
                    RankOutput part = parts.get(context.getLocalIndex());
                    context.getParticipants().forEach(StepParticipant::beginBackward);
                    try (NDManager scope = part.manager.newSubManager();
                            Phase phase = Phase.begin(context, Direction.BACKWARD)) {
                        LossOfPass.backward(reached, context.getLocalIndex(), scope);
                    } finally {
                        context.getGradientKeeper().clearTaken();
                        part.closeScopes();
                    }
                    return null;
                });
    }

    private void checkOpen() {
        if (!manager.isOpen()) {
            throw new IllegalStateException(
                    "The manager of the inputs was closed, and with it what the ranks had kept of"
                            + " the forward pass: compute losses and evaluators of its"
                            + " predictions, and go backward, before it is closed");
        }
    }

    /**
     * Checks that the losses that were reached can still be differentiated.
     *
     * @throws IllegalStateException if the pass was closed
     * @throws IllegalArgumentException if another loss has been computed of a fused head since
     */
    void checkBeforeBackward() {
        checkOpen();
        reached.forEach(loss -> loss.checkHeads(parts.get(0)));
    }

    /** Frees the graphs: nothing can be differentiated with them. No rank is computing. */
    void drop() {
        consumed = true;
        parts.forEach(RankOutput::closeScopes);
    }

    /** Returns whether a backward pass can still come, be it one that is refused. */
    boolean isPending() {
        boolean open = manager.isOpen();
        return !consumed && (open || losses.stream().anyMatch(LossOfPass::isReachable));
    }

    /** Notes that nothing asks any more whether a backward pass has come. */
    void forget() {
        losses.forEach(LossOfPass::closeHandle); // evaluators may still ask for the loss
        consumed = true;
    }

    /**
     * A loss of a forward pass: a network may have several, such as one for each kind of labels.
     *
     * @param labels the labels
     * @param leaf the loss of the whole batch, to the coordinator
     * @param handle the same, which outlives the pass: it may be a term of what is differentiated
     *     when its manager was closed
     * @param parts the loss of each rank of this process, and what it counts for
     * @param ofHeads how many losses the fused heads had computed with it, see {@link
     *     RankOutput#countLosses()}
     * @param uses how it depends on the parameters, see {@link
     *     io.djltp.internal.gradient.ParameterUses}
     */
    @SuppressWarnings("try") // a scope is used by being open
    private record LossOfPass(
            InPlaceCheck labels,
            NDArray leaf,
            NDArray handle,
            List<Part> parts,
            List<Long> ofHeads,
            Map<Parameter, PartialAxes> uses) {

        /**
         * The loss of a rank.
         *
         * @param loss the loss, of the rank's rows or of all
         * @param share what it counts for in the loss of the batch
         */
        record Part(NDArray loss, double share) {}

        /**
         * Takes over the loss that the ranks have computed.
         *
         * @param trained whether a backward pass may come
         */
        static LossOfPass of(
                NDList labels, List<RankOutput> outputs, NDManager manager, boolean trained) {
            NDArray leaf = Autograd.detach(outputs.get(0).reported, manager);
            // else it is a number to whoever differentiates something, as it is to the ranks
            if (outputs.stream()
                    .anyMatch(output -> TensorView.of(output.loss).requiresGradient())) {
                leaf.setRequiresGradient(true);
            }
            Map<Parameter, PartialAxes> uses = new HashMap<>();
            outputs.forEach(output -> uses.putAll(output.uses)); // of rows that use others, too
            List<Part> parts =
                    outputs.stream().map(output -> new Part(output.loss, output.share)).toList();
            List<Long> ofHeads = outputs.get(0).countLosses();
            NDArray handle = trained ? Autograd.handle(leaf) : leaf;
            return new LossOfPass(
                    InPlaceCheck.begin("label", labels), leaf, handle, parts, ofHeads, uses);
        }

        /** Returns whether it is the loss of these very labels, which nobody has changed since. */
        boolean isOf(NDList others) {
            NDList own = labels.arrays();
            boolean same = own.size() == others.size();
            for (int i = 0; same && i < own.size(); i++) {
                same = own.get(i) == others.get(i);
            }
            return same && labels.changed() < 0;
        }

        /** Returns whether the caller's backward pass has reached it. */
        boolean isReached() {
            try (NDArray gradient = Autograd.gradient(handle)) {
                return gradient != null;
            }
        }

        /** Frees what outlives the manager of the pass: no backward pass will come. */
        void closeHandle() {
            if (handle != leaf) {
                handle.close();
            }
        }

        /** Returns whether a backward pass can still reach it. */
        boolean isReachable() {
            return handle != leaf && Autograd.isShared(handle);
        }

        /**
         * Checks that fused heads have what the loss is differentiated with.
         *
         * @throws IllegalArgumentException if another loss has been computed of one since
         */
        void checkHeads(RankOutput output) {
            if (!ofHeads.equals(output.countLosses())) {
                throw new IllegalArgumentException(
                        "What is differentiated has a loss of the fused head with the weight "
                                + output.getHeads().get(0).getShape()
                                + ", of which another loss has been computed since, and the head"
                                + " keeps what the gradient of its last loss is made of. Let each"
                                + " loss have a forward and a backward pass of its own, whose"
                                + " gradients add up until trainer.step(), or build the head with"
                                + " optFusedLoss(false)");
            }
        }

        /**
         * Returns what the backward pass multiplies a rank's loss with: what the coordinator's has
         * multiplied the whole with, times the rank's share. Computed on the device: to read it,
         * the host would wait for the forward pass.
         */
        private NDArray factor(Part part, NDManager scope) {
            try (NDArray above = Autograd.gradient(handle);
                    Autograd.GradMode mode = Autograd.gradMode(false)) {
                if (part.share() == 1 && isLike(above, part.loss())) {
                    return Autograd.detach(above, scope); // as what follows would leave it
                }
                NDArray exact = Autograd.detach(above, scope).toType(DataType.FLOAT64, false);
                // not in place: all ranks read the one gradient
                NDArray factor = exact.mul(part.share()).toType(part.loss().getDataType(), false);
                NDArray own = factor.toDevice(part.loss().getDevice(), false);
                own.attach(scope);
                return own;
            }
        }

        private static boolean isLike(NDArray above, NDArray loss) {
            return above.getDataType() == loss.getDataType()
                    && above.getDevice().equals(loss.getDevice());
        }

        /**
         * Runs the backward pass of a rank. Several losses of one graph are differentiated as their
         * sum: it is used up by that.
         *
         * @param reached the losses that the coordinator's backward pass has reached
         * @param index the place of the rank among those of this process
         * @param scope the manager of what is made
         */
        static void backward(List<LossOfPass> reached, int index, NDManager scope) {
            NDArray sum = null;
            NDArray seed = null;
            try (Autograd.GradMode mode = Autograd.gradMode(true)) {
                for (LossOfPass loss : reached) {
                    Part part = loss.parts.get(index);
                    NDArray own = part.loss();
                    NDArray factor = loss.factor(part, scope);
                    if (reached.size() == 1) {
                        sum = own;
                        seed = factor;
                    } else {
                        NDArray scaled = own.mul(factor);
                        sum = sum == null ? scaled : sum.add(scaled);
                        seed = sum.onesLike();
                    }
                }
            }
            Autograd.backward(sum, seed.reshape(sum.getShape()));
        }
    }
}
