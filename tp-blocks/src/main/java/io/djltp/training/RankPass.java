package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.loss.AbstractCompositeLoss;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;

import io.djltp.collective.ReduceOp;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.Errors;
import io.djltp.internal.gradient.PartialAxes;
import io.djltp.internal.layout.DeferredHead;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.internal.rank.DataRows;
import io.djltp.internal.rank.LateRefusal;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiFunction;

/**
 * One rank's pass through the network: its forward pass, the loss, and the backward pass, with what
 * the rank keeps between them.
 *
 * <p>Where the batch is sharded, a loss gets the rows of all ranks, so that any loss is right: a
 * sum, a mean of what a mask leaves, one of pairs of rows. A loss that is known to be a mean over
 * rows is computed of each rank's rows, and the means are averaged.
 */
@SuppressWarnings("try") // a scope is used by being open
final class RankPass {

    /**
     * An output of the network.
     *
     * @param array this rank's part, in the graph of the pass; the features of a fused head
     * @param placed the same as losses get it
     * @param region the placement over the axes of the mesh
     * @param layout how its last axis is sharded, or {@code null} if it is whole
     * @param wholeRows the shape with the rows of all ranks
     * @param updates how often the weight of a fused head had been updated
     */
    record Output(
            NDArray array,
            NDArray placed,
            Region region,
            @Nullable ShardedLayout layout,
            Shape wholeRows,
            long updates) {

        @Nullable DeferredHead head() {
            return layout == null ? null : layout.head();
        }

        /** Returns the shape with all classes; that of the features of a fused head as it is. */
        Shape wholeFeatures() {
            Shape shape = array.getShape();
            return layout == null || layout.head() != null
                    ? shape
                    : shape.slice(0, shape.dimension() - 1).add(layout.cut().getLength());
        }
    }

    private final ParallelForward trained;
    private final ParallelContext context;
    private final NDManager manager; // of what is kept, on the rank's device
    private final List<NDManager> scopes = new ArrayList<>();
    private final List<Output> outputs = new ArrayList<>();
    private ForwardPass pass; // that of before, until this one begins
    private @Nullable RuntimeException refusal;
    private @Nullable NDArray loss;
    private @Nullable NDArray reported;
    private double share = 1;
    private Map<Parameter, PartialAxes> uses = Map.of();

    /**
     * Begins a pass.
     *
     * @param trained what all passes of the trainer share
     * @param context the rank
     * @param parent the manager of what all ranks keep of the pass
     */
    RankPass(ParallelForward trained, ParallelContext context, NDManager parent) {
        this.trained = trained;
        this.context = context;
        manager = parent.newSubManager(context.getDevice());
        pass = context.getPass();
    }

    ForwardPass getPlacements() {
        return pass;
    }

    Output getOutput(int index) {
        return outputs.get(index);
    }

    List<Output> getOutputs() {
        return outputs;
    }

    /** Returns what this rank alone has refused of its rows, or {@code null}. */
    @Nullable RuntimeException getRefusal() {
        return refusal;
    }

    /** Returns the loss of the rank's part of the batch, or of the whole, with its graph. */
    NDArray getLoss() {
        return evaluated(loss);
    }

    private static NDArray evaluated(@Nullable NDArray value) {
        if (value == null) {
            throw new IllegalStateException("The loss has not been computed");
        }
        return value;
    }

    /** Returns the loss of the whole batch, which is the same on all ranks. */
    NDArray getReportedLoss() {
        return evaluated(reported);
    }

    /** Returns what the rank's loss counts for in the loss of the batch. */
    double getShare() {
        return share;
    }

    /** Returns how the loss depends on parameters. */
    Map<Parameter, PartialAxes> getUses() {
        return uses;
    }

    List<DeferredHead> getHeads() {
        return outputs.stream().map(Output::head).filter(head -> head != null).distinct().toList();
    }

    List<Long> countLosses() {
        return getHeads().stream().map(DeferredHead::getLosses).toList();
    }

    private NDManager newScope() {
        NDManager scope = manager.newSubManager();
        scopes.add(scope);
        return scope;
    }

    /** Frees what only a backward pass needs. */
    void closeScopes() {
        scopes.forEach(NDManager::close);
        scopes.clear();
    }

    /** Goes back to this pass: another one may have come between. */
    void resume() {
        context.resume(pass);
    }

    /**
     * Computes the outputs, and the loss if there are labels.
     *
     * @param data the whole batch
     * @param labels the labels of the whole batch, or {@code null} if the loss comes later
     * @param training whether a graph is recorded
     */
    void forward(NDList data, @Nullable NDList labels, boolean training) {
        boolean cut = context.getMesh().isCut(DeviceMesh.DATA);
        NDManager scope = newScope();
        long rows = BatchPart.rowsOf(data);
        LateRefusal late = trained.isDistributed() ? null : LateRefusal.begin();
        try (Autograd.GradMode recording = Autograd.gradMode(training);
                ParallelContext.Phase phase = context.begin(Direction.FORWARD);
                JavaMemory memory = JavaMemory.keep(scope)) {
            memory.add(data);
            long own = BatchPart.rows(rows, context, cut).length();
            context.beginForward(rows, own, cut, scope);
            pass = context.getPass();
            trained.begin(context, training);
            NDList input = BatchPart.of(data, context, cut ? rows : 0, scope);
            NDList targets = labels == null ? null : labelsOfBlock(labels, scope);
            add(trained.compute(context, input, targets, training));
            if (labels != null) {
                evaluateLoss(labels);
            }
        } finally {
            context.endForward();
            refusal = late == null ? null : late.end();
            if (!training) {
                closeScopes();
            }
        }
    }

    /** Returns the labels as a block may take them that is told of them in training. */
    private NDList labelsOfBlock(NDList labels, NDManager scope) {
        long rows = pass.getGlobalRows();
        DeviceMesh mesh = context.getMesh();
        boolean cut = mesh.isCut(DeviceMesh.DATA) && !mesh.isOverlaid();
        cut &= BatchPart.canCut(labels, rows);
        return BatchPart.of(labels, context, cut ? rows : 0, scope);
    }

    private void add(NDList arrays) {
        boolean alone = context.getSize() == 1;
        for (NDArray array : arrays) {
            Region region =
                    alone && pass.layoutOf(array) == null ? Region.WHOLE : pass.regionOf(array);
            ShardedLayout layout = region.isShard() ? pass.layoutOf(array) : null;
            check(array, region, layout);
            boolean spare = region.isRowsCut() && pass.getRows() == 0; // a row that does not count
            NDArray raw = DelegatedArray.unwrap(array);
            NDArray kept = // a handle: the array may be another output too, or a parameter
                    spare ? raw.get(new NDIndex().addSliceDim(0, 0)) : Autograd.handle(raw);
            kept.setName(array.getName());
            kept.attach(manager);
            NDArray placed = pass.placed(kept, array);
            if (layout != null) {
                pass.setLayout(kept, layout); // it is no longer known by its manager
            }
            DeferredHead head = layout == null ? null : layout.head();
            Shape wholeRows = wholeRows(raw.getShape(), region);
            long updates = head == null ? 0 : head.getUpdates();
            outputs.add(new Output(kept, placed, region, layout, wholeRows, updates));
        }
        for (DeferredHead head : pass.getHeads()) {
            if (outputs.stream().noneMatch(output -> output.head() == head)) {
                throw new IllegalArgumentException(
                        "The logits of the fused head with the weight "
                                + head.getShape()
                                + " are never computed, and its output must be, as it is, an output"
                                + " of the network. Another block or operation follows it here."
                                + " Build it with optFusedLoss(false), or remove what follows");
            }
        }
    }

    private Shape wholeRows(Shape own, Region region) {
        if (!region.isRowsCut() || own.dimension() == 0) {
            return own;
        }
        long times = own.get(0) / Math.max(1, pass.getRows()); // a row may have become several
        return new Shape(times * pass.getGlobalRows()).addAll(own.slice(1));
    }

    private void check(NDArray array, Region region, @Nullable ShardedLayout layout) {
        if (region.isTokensCut()) {
            throw Errors.argument(
                    "Output %s of the network, here %s, has this rank's tokens only: end the"
                            + " sequence-parallel region with a SequenceGather, or with a ColumnParallelLinear with"
                            + " optSequenceParallel(true)",
                    outputs.size(), array.getShape());
        }
        pass.checkOutput(array);
        if (region.isShard() && layout == null) {
            throw Errors.argument(
                    "Output %s of the network, here %s, is computed from a slice of the features, and it is not known"
                            + " how the whole is sharded: let the block that has taken the slice"
                            + " enter it again (enterSlice)",
                    outputs.size(), array.getShape());
        }
        Shape shape = DelegatedArray.unwrap(array).getShape();
        long rows = pass.getRows();
        if (!region.isRowsCut() || rows == 0) {
            return;
        }
        long length = shape.dimension() == 0 ? 0 : shape.get(0);
        boolean known = pass.isPlacing() && pass.rowAxisOf(array) == 0;
        if (known ? length % rows != 0 : length != rows) {
            throw Errors.argument(
                    "Output %s of the network is %s on a rank with %s of the %s rows of the batch. Where the batch is"
                            + " cut over the ranks, axis 0 of an output must be its rows, or the"
                            + " ranks' outputs cannot be put together: use TENSOR mode for this"
                            + " network",
                    outputs.size(), shape, rows, pass.getGlobalRows());
        }
    }

    /**
     * Checks that fused heads can still compute logits.
     *
     * @throws IllegalStateException if a step has changed their weight
     */
    void checkUpToDate() {
        for (Output output : outputs) {
            if (output.head() != null && output.head().getUpdates() != output.updates()) {
                throw new IllegalStateException(
                        "The predictions of a fused head are computed when they"
                                + " are asked for, and trainer.step() has changed its weight since"
                                + " the forward pass, or a loss with optUpdateInLoss has: evaluate"
                                + " them before the step");
            }
        }
    }

    /**
     * Computes the loss, and how it depends on parameters.
     *
     * @param labels the labels of the whole batch
     */
    void evaluateLoss(NDList labels) {
        NDManager scope = newScope();
        try (Autograd.GradMode mode = Autograd.gradMode(pass.isTraining());
                ParallelContext.Phase phase = context.begin(Direction.FORWARD, "loss");
                JavaMemory memory = JavaMemory.keep(scope)) {
            memory.add(labels);
            if (isComputedOfParts(labels)) {
                checkLabels(labels);
                NDList own = BatchPart.of(labels, context, pass.getGlobalRows(), scope);
                pass.setLossOfParts(true);
                try {
                    loss = compute(own, placedOutputs());
                } finally {
                    pass.setLossOfParts(false);
                }
                reported = average(own, scope);
                reported.attach(manager);
            } else {
                loss = compute(BatchPart.of(labels, context, 0, scope), gather(scope));
                reported = loss;
                share = 1;
            }
            loss.attach(manager);
            if (pass.isTraining()) {
                uses = trained.getUses().find(context, pass);
            }
        }
    }

    private void checkLabels(NDList labels) {
        Output first = outputs.get(0);
        Shape shape = first.wholeFeatures();
        if (trained.getLoss() instanceof ShardedLoss sharded && shape.dimension() > 1) {
            sharded.checkLabels(labels, first.wholeRows(), shape.get(shape.dimension() - 1));
        }
    }

    private boolean isComputedOfParts(NDList labels) {
        Shape[] shapes =
                outputs.stream().map(output -> output.array().getShape()).toArray(Shape[]::new);
        return context.getDataGroup().getSize() > 1
                && outputs.stream().allMatch(output -> output.region().isRowsCut())
                && !pass.hasSpareRanks()
                && BatchPart.canCut(labels, pass.getGlobalRows())
                && ShardedLoss.isMean(trained.getLoss(), shapes);
    }

    private NDArray compute(NDList labels, NDList predictions) {
        Loss function = trained.getLoss();
        boolean sharded = outputs.stream().anyMatch(output -> output.region().isShard());
        if (sharded
                && !(function instanceof ShardedLoss)
                && !(function instanceof AbstractCompositeLoss)
                && !(function instanceof IndexLoss)) {
            throw Errors.argument(
                    "%s%s VocabParallelCrossEntropyLoss, or let a ColumnParallelLinear with"
                            + " optGatherOutput(true) be the last layer. For several outputs, add"
                            + " one loss for each to a SimpleCompositeLoss.",
                    function.getName(),
                    (getHeads().isEmpty()
                            ? " cannot be computed on "
                                    + predictions.head().getShape()
                                    + ", one rank's slice of the classes. Use"
                            : " needs logits, which a fused head never computes. Use"));
        }
        List<Long> before = countLosses();
        try {
            NDList placed = pass.place(labels, predictions);
            NDArray value = pass.takeLoss(trained.evaluateLoss(placed, predictions));
            checkHeads(function, before);
            return value;
        } catch (RuntimeException e) {
            throw pass.explain(e);
        }
    }

    /** A head keeps for the gradient what one loss needs. */
    private void checkHeads(Loss function, List<Long> before) {
        for (int i = 0; i < before.size(); i++) {
            DeferredHead head = getHeads().get(i);
            long losses = head.getLosses() - before.get(i);
            if (losses > 1) {
                throw Errors.argument(
                        "The loss %s is computed of %s losses of the fused head with the weight"
                                + " %s, which keeps what the gradient of one is made of: let one"
                                + " VocabParallelCrossEntropyLoss compute all of it, such as with"
                                + " the label smoothing and the z-loss of LossOptions, or build"
                                + " the head with optFusedLoss(false)",
                        function.getName(), losses, head.getShape());
            }
        }
    }

    /** The mean over the batch is the mean of the ranks' means, each for as many rows as it has. */
    private NDArray average(NDList labels, NDManager scope) {
        float weight =
                trained.getLoss() instanceof ShardedLoss sharded
                        ? sharded.getWeight(labels, outputs.get(0).array().getShape())
                        : pass.getRows();
        NDArray mean = Autograd.detach(getLoss(), scope);
        boolean wide = mean.getDataType() == DataType.FLOAT64;
        DataType type = wide ? DataType.FLOAT64 : DataType.FLOAT32;
        NDArray own = mean.toType(type, false).reshape(1).mul(weight);
        NDArray sums = own.concat(scope.create(new float[] {weight}).toType(type, false));
        context.getDataGroup().setIssuer(trained.getLoss().getClass().getSimpleName());
        context.getDataGroup().allReduce(sums, ReduceOp.SUM);
        double[] total = HostReads.doubles(sums.toType(DataType.FLOAT64, false));
        double rows = total[1] > 0 ? total[1] : 1; // the weights of rows may be small
        share = weight / rows;
        return scope.create(total[0] / rows).toType(type, false);
    }

    /**
     * Computes an evaluator of this rank's predictions.
     *
     * @param evaluator computes a result of one element a row
     * @param labels the labels of the whole batch
     * @param index the output, or -1 for all of them
     * @param rows the rows of the batch over all ranks, or 0 if each rank evaluates all of them
     * @return the results, attached to the manager of the pass
     */
    NDArray evaluate(
            BiFunction<NDList, NDList, NDArray> evaluator, NDList labels, int index, long rows) {
        resume();
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager()) {
            NDList own = BatchPart.of(labels, context, rows, scope);
            NDList all = new NDList();
            if (pass.hasSpareRanks()) {
                all.addAll(pass.unplace(gather(scope)));
            } else {
                outputs.forEach(output -> all.add(output.array()));
            }
            NDList chosen = index < 0 ? all : new NDList(all.get(index));
            NDArray value = DelegatedArray.unwrap(trained.evaluate(evaluator, own, chosen));
            value.attach(manager);
            return value;
        }
    }

    /**
     * Gathers logits with all classes, of this rank's rows. A fused head computes them first.
     *
     * @param index the output
     * @param into the manager of the result
     * @return the logits
     */
    NDArray logits(int index, NDManager into) {
        resume();
        Output output = outputs.get(index);
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager()) {
            ShardedLayout layout = Objects.requireNonNull(output.layout(), "layout");
            NDArray own = Autograd.detach(output.array(), scope);
            own = output.head() == null ? own : output.head().logits(own);
            NDArray whole = context.getMappings().gatherFromRegion(own, layout.cut());
            whole.attach(into);
            return whole;
        }
    }

    private NDList placedOutputs() {
        NDList placed = new NDList();
        outputs.forEach(output -> placed.add(output.placed()));
        return placed;
    }

    /** Returns the outputs with the rows of all ranks, as a part of the graph. */
    private NDList gather(NDManager scope) {
        NDList whole = placedOutputs();
        for (int i = 0; i < whole.size(); i++) {
            if (outputs.get(i).region().isRowsCut()) {
                NDArray own = outputs.get(i).array();
                boolean truth = own.getDataType() == DataType.BOOLEAN;
                NDArray numbers = truth ? own.toType(DataType.INT32, false) : own;
                NDArray rows = DataRows.gather(context, numbers, "Output " + i + " of the network");
                rows.attach(scope);
                rows = truth ? rows.toType(DataType.BOOLEAN, false) : rows;
                whole.set(i, pass.gathered(rows, whole.get(i)));
            }
        }
        return whole;
    }

    /**
     * Differentiates losses of this pass, and frees what only that needs.
     *
     * @param losses the losses
     */
    void backward(List<ParallelOutput.LossOfPass> losses) {
        context.getParticipants().forEach(StepParticipant::beginBackward);
        try (NDManager scope = manager.newSubManager();
                ParallelContext.Phase phase = context.begin(Direction.BACKWARD)) {
            NDArray sum = null;
            NDArray seed = null;
            try (Autograd.GradMode mode = Autograd.gradMode(true)) {
                for (ParallelOutput.LossOfPass each : losses) {
                    NDArray own = each.parts().get(context.getLocalIndex()).loss();
                    NDArray factor = each.factor(context.getLocalIndex(), scope);
                    if (losses.size() == 1) {
                        sum = own;
                        seed = factor;
                    } else {
                        NDArray scaled = own.mul(factor);
                        sum = sum == null ? scaled : sum.add(scaled);
                        seed = sum.onesLike();
                    }
                }
            }
            NDArray total = Objects.requireNonNull(sum, "no loss");
            Autograd.backward(total, Objects.requireNonNull(seed).reshape(total.getShape()));
        } finally {
            context.getGradientKeeper().clearTaken();
            closeScopes();
        }
    }
}
