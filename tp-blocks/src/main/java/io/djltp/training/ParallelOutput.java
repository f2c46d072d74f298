package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.collective.Communicator;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.gradient.GradientGroups;
import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.layout.DeferredHead;
import io.djltp.internal.loss.ShardedPredictions;
import io.djltp.internal.parameters.ShardedArray;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchOperations;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/**
 * The output of a forward pass on all ranks. To DJL it is the list of the output arrays of the
 * whole batch, none of them part of a graph; arrays that are cut over the ranks by class are
 * stand-ins. If they are not trained on, they are gathered, and those of a fused head computed,
 * when something reads them. The graphs stay with the ranks, and so does the loss.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ParallelOutput extends NDList implements ShardedPredictions {

    private static final long serialVersionUID = 1L;

    private final transient RankPool ranks;
    private final transient NDManager manager;
    private final transient List<RankPass> passes;
    private final transient List<LossOfPass> losses = new ArrayList<>();
    private transient List<LossOfPass> reached = List.of(); // by what is to be differentiated
    private transient Consumer<NDList> comparison = labels -> {};
    private transient Runnable modelCheck = () -> {};
    private boolean consumed;

    /**
     * Creates the output.
     *
     * @param ranks the ranks
     * @param manager the manager of what is kept of the forward pass
     * @param passes the pass of each rank
     * @param training whether the output is trained on
     */
    ParallelOutput(RankPool ranks, NDManager manager, List<RankPass> passes, boolean training) {
        this.ranks = ranks;
        this.manager = manager;
        this.passes = passes;
        for (int i = 0; i < passes.get(0).getOutputs().size(); i++) {
            add(wholeArray(i, training));
        }
        if (training) { // so that terms computed from them can be found
            getPredictions().forEach(array -> array.setRequiresGradient(true));
        }
    }

    /** Sets what compares labels that come with the loss with those of other processes. */
    void setComparison(Consumer<NDList> comparison) {
        this.comparison = comparison;
    }

    /** Sets what checks that the model has its weights, before the ranks compute with them. */
    void setModelCheck(Runnable modelCheck) {
        this.modelCheck = modelCheck;
    }

    private NDArray wholeArray(int index, boolean training) {
        RankPass.Output first = passes.get(0).getOutput(index);
        if (first.layout() == null) {
            List<NDArray> arrays =
                    passes.stream().map(pass -> pass.getOutput(index).array()).toList();
            return whole(arrays, first.region().isRowsCut());
        }
        Shape shape = first.wholeRows();
        return ShardedArray.of(
                first.array(),
                shape.slice(0, shape.dimension() - 1).add(first.layout().cut().getLength()),
                first.head() != null,
                training ? null : () -> logits(index),
                (ShardedPredictions) (labels, of) -> evaluateOnRanks(labels, of, index));
    }

    /** Gathers logits with all classes; those of a fused head are computed first. */
    private NDArray logits(int index) {
        modelCheck.run();
        passes.get(0).checkUpToDate();
        List<NDArray> alike =
                ranks.runOrRefuse(
                        context -> passes.get(context.getLocalIndex()).logits(index, manager));
        NDArray whole = whole(alike, passes.get(0).getOutput(index).region().isRowsCut());
        alike.forEach(NDArray::close);
        return whole;
    }

    private static NDArray onlyFirst(List<NDArray> alike) {
        alike.subList(1, alike.size()).forEach(NDArray::close);
        return alike.get(0);
    }

    /**
     * Returns what the ranks have computed, as the caller gets it: a value of the device of the
     * caller, no part of a graph.
     *
     * @param arrays the arrays of the ranks of this process
     * @param rowsCut whether each rank has its rows; else all have the same
     */
    private NDArray whole(List<NDArray> arrays, boolean rowsCut) {
        if (!rowsCut) {
            return Autograd.detach(arrays.get(0), manager);
        }
        if (ranks.isDistributed()) {
            return onlyFirst(
                    ranks.run(context -> gather(context, arrays.get(context.getLocalIndex()))));
        }
        boolean overlaid = ranks.getContext(0).getMesh().isOverlaid(); // all have rows of their own
        try (NDManager scope = manager.newSubManager()) {
            NDList rows = new NDList();
            for (int i = 0; i < arrays.size(); i++) {
                if (overlaid || ranks.getContext(i).getTensorGroup().getRank() == 0) {
                    NDArray own = Autograd.detach(arrays.get(i), scope);
                    rows.add(own.toDevice(manager.getDevice(), false));
                }
            }
            NDArray whole = TorchOperations.concat(rows, 0);
            whole = rows.size() == 1 ? whole.duplicate() : whole;
            whole.attach(manager);
            return whole;
        }
    }

    private NDArray gather(ParallelContext context, NDArray rows) {
        Communicator group = context.getDataGroup();
        boolean truth = rows.getDataType() == DataType.BOOLEAN;
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager(context.getDevice())) {
            NDArray own = Autograd.detach(rows, scope);
            own = truth ? own.toType(DataType.INT32, false) : own;
            own = TensorView.of(own).isContiguous() ? own : own.duplicate();
            long[] mine = {own.getShape().get(0)};
            long[] counts = GatheredNumbers.of(group, scope, mine, "the gathering of the output");
            long rowSize = own.getShape().slice(1).size();
            long[] shares = Arrays.stream(counts).map(count -> count * rowSize).toArray();
            Shape shape = new Shape(Arrays.stream(counts).sum()).addAll(own.getShape().slice(1));
            NDArray whole = scope.create(shape, own.getDataType());
            group.allGather(TensorView.of(own), TensorView.of(whole), shares).await();
            whole = truth ? whole.toType(DataType.BOOLEAN, false) : whole;
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
        checkOpen();
        for (LossOfPass loss : losses) {
            if (loss.isOf(labels)) {
                return loss.leaf();
            }
        }
        passes.get(0).checkUpToDate();
        comparison.accept(labels);
        ranks.runOrRefuse(
                context -> {
                    RankPass pass = passes.get(context.getLocalIndex());
                    pass.resume();
                    pass.evaluateLoss(labels);
                    return pass;
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
        LossOfPass loss = LossOfPass.of(labels, passes, manager, isTrainedOn());
        losses.add(loss);
        return loss.leaf();
    }

    private boolean isTrainedOn() {
        return !consumed && passes.get(0).getPlacements().isTraining();
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
        RankPass first = passes.get(0);
        first.checkUpToDate();
        boolean few = first.getPlacements().hasSpareRanks(); // rows, and not on all ranks
        boolean cut = first.getOutput(Math.max(0, index)).region().isRowsCut() && !few;
        long rows = cut ? first.getPlacements().getGlobalRows() : 0;
        List<NDArray> results =
                ranks.runOrRefuse(
                        context ->
                                passes.get(context.getLocalIndex())
                                        .evaluate(evaluator, labels, index, rows));
        NDArray whole = whole(results, cut);
        results.forEach(NDArray::close);
        return whole;
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
                    drop(); // else the gradient would be found again in the next step
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
        ranks.runAll(
                context -> {
                    passes.get(context.getLocalIndex()).backward(reached);
                });
    }

    private void checkOpen() {
        modelCheck.run();
        Errors.checkState(
                manager.isOpen(),
                "The manager of the inputs was closed, and with it what the ranks had kept of"
                        + " the forward pass: compute losses and evaluators of its"
                        + " predictions, and go backward, before it is closed");
    }

    /**
     * Checks that the losses that were reached can still be differentiated.
     *
     * @throws IllegalStateException if the pass was closed
     * @throws IllegalArgumentException if another loss has been computed of a fused head since
     */
    void checkBeforeBackward() {
        checkOpen();
        reached.forEach(loss -> loss.checkHeads(passes.get(0)));
    }

    /** Frees the graphs: nothing can be differentiated with them. No rank is computing. */
    void drop() {
        consumed = true;
        passes.forEach(RankPass::closeScopes);
    }

    /** Returns whether a backward pass can still come, even one that throws. */
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
     * @param versions how often each was changed in place by then
     * @param leaf the loss of the whole batch, to the coordinator
     * @param handle the same, which outlives the pass: it may be a term of what is differentiated
     *     when its manager was closed
     * @param parts the loss of each rank of this process, and what it counts for
     * @param ofHeads how many losses the fused heads had computed with it, see {@link
     *     RankPass#countLosses()}
     * @param uses how it depends on the parameters, see {@link
     *     io.djltp.internal.gradient.ParameterUses}
     */
    @SuppressWarnings("try") // a scope is used by being open
    record LossOfPass(
            NDList labels,
            long[] versions,
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
                NDList labels, List<RankPass> passes, NDManager manager, boolean trained) {
            NDArray leaf = Autograd.detach(passes.get(0).getReportedLoss(), manager);
            // else it is a number to whoever differentiates something, as it is to the ranks
            if (passes.stream()
                    .anyMatch(pass -> TensorView.of(pass.getLoss()).requiresGradient())) {
                leaf.setRequiresGradient(true);
            }
            Map<Parameter, PartialAxes> uses = new HashMap<>();
            passes.forEach(pass -> uses.putAll(pass.getUses())); // of rows that use others, too
            return new LossOfPass(
                    new NDList(labels),
                    labels.stream().mapToLong(Autograd::version).toArray(),
                    leaf,
                    trained ? Autograd.handle(leaf) : leaf,
                    passes.stream().map(pass -> new Part(pass.getLoss(), pass.getShare())).toList(),
                    passes.get(0).countLosses(),
                    uses);
        }

        /** Returns whether it is the loss of these very labels, which nobody has changed since. */
        boolean isOf(NDList others) {
            boolean same = labels.size() == others.size();
            for (int i = 0; same && i < versions.length; i++) {
                NDArray label = labels.get(i);
                boolean closed = label instanceof NativeResource<?> own && own.isReleased();
                same = label == others.get(i);
                same = same && (closed || Autograd.version(label) == versions[i]);
            }
            return same;
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
         * @throws IllegalArgumentException if another loss has been computed of one since, or one
         *     has been updated by another multiple of the loss
         */
        void checkHeads(RankPass pass) {
            if (pass.getHeads().stream().anyMatch(DeferredHead::isUpdatedInLoss)) {
                try (NDArray above = Objects.requireNonNull(Autograd.gradient(handle), "factor")) {
                    double factor = HostReads.number(above);
                    Errors.check(
                            factor == 1,
                            "A head with optUpdateInLoss has updated its weight by its loss "
                                    + "times 1, and the loss is differentiated times %s: leave the "
                                    + "option out, or change the learning rate",
                            factor);
                }
            }
            if (!ofHeads.equals(pass.countLosses())) {
                throw new IllegalArgumentException(
                        "What is differentiated has a loss of the fused head with the weight "
                                + pass.getHeads().get(0).getShape()
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
         *
         * @param rank the place of the rank among those of this process
         * @param scope the manager of the result
         */
        NDArray factor(int rank, NDManager scope) {
            Part part = parts.get(rank);
            try (NDArray above = Objects.requireNonNull(Autograd.gradient(handle), "not reached");
                    Autograd.GradMode mode = Autograd.gradMode(false)) {
                if (part.share() == 1 && isLike(above, part.loss())) {
                    return Autograd.detach(above, scope); // as what follows would leave it
                }
                NDArray exact = Autograd.detach(above, scope).toType(DataType.FLOAT64, false);
                // not in place: all ranks read the one gradient
                NDArray factor = exact.mul(part.share()).toType(part.loss().getDataType(), false);
                NDArray own = HostReads.toDevice(factor, part.loss().getDevice());
                own.attach(scope);
                return own;
            }
        }

        private static boolean isLike(NDArray above, NDArray loss) {
            return above.getDataType() == loss.getDataType()
                    && above.getDevice().equals(loss.getDevice());
        }
    }
}
