package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.AbstractCompositeLoss;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;

import io.djltp.collective.ReduceOp;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.gradient.ParameterUses;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.JavaMemory;
import io.djltp.layout.DeferredHead;
import io.djltp.loss.MeanLosses;
import io.djltp.loss.ShardedLoss;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.Phase;

import java.util.List;
import java.util.function.BiFunction;

/**
 * The user's loss as a rank computes it: of its slice of the classes, and of all rows of the batch.
 *
 * <p>Where the rows are cut over the ranks, those of all ranks are gathered, so that any loss is
 * right: a sum, a mean of what a mask leaves, one of pairs of rows. A loss that is known to be a
 * mean over rows is computed of each rank's rows, and the means are averaged.
 */
@SuppressWarnings("try") // a scope is used by being open
final class LossOnRanks {

    private final Loss loss;
    private final ParameterUses uses;
    private final RandomnessCheck randomness;

    LossOnRanks(Loss loss, ParameterUses uses, RandomnessCheck randomness) {
        this.loss = loss;
        this.uses = uses;
        this.randomness = randomness;
    }

    /** Returns what looks at the graphs of losses, and of outputs. */
    ParameterUses getUses() {
        return uses;
    }

    /** Computes an evaluator as a rank does. */
    NDArray evaluate(
            BiFunction<NDList, NDList, NDArray> evaluator, NDList labels, NDList predictions) {
        return randomness.withoutDraws("An evaluator", () -> evaluator.apply(labels, predictions));
    }

    /**
     * Computes the loss and leaves it in the rank's output, with what it counts for and with the
     * loss of the whole batch, which is the same on all ranks.
     *
     * @param context the rank
     * @param part the rank's output
     * @param labels the labels of the whole batch
     */
    void evaluate(ParallelContext context, RankOutput part, NDList labels) {
        boolean recorded = part.getPass().isTraining();
        NDManager scope = part.newScope();
        try (Autograd.GradMode mode = Autograd.gradMode(recorded);
                Phase phase = Phase.begin(context, Direction.FORWARD);
                JavaMemory memory = JavaMemory.keep(scope)) {
            memory.add(labels);
            evaluate(context, part, labels, scope);
        }
    }

    private void evaluate(
            ParallelContext context, RankOutput part, NDList labels, NDManager scope) {
        boolean ofParts = isComputedOfParts(context, part, labels);
        if (ofParts) {
            checkLabels(part, labels);
            long rows = part.getPass().getGlobalRows();
            NDList own = BatchPart.of(labels, context, rows, scope);
            part.loss = compute(context, part, own, part.getPlaced());
            part.loss.attach(part.manager);
            part.reported = average(context, part, own, scope);
            part.reported.attach(part.manager);
        } else {
            NDList all = BatchPart.of(labels, context, 0, scope);
            part.loss = compute(context, part, all, BatchRows.gather(context, part, scope));
            part.loss.attach(part.manager);
            part.reported = part.loss;
            part.share = 1;
        }
        if (part.getPass().isTraining()) {
            part.uses = uses.find(context, part.getPass());
        }
    }

    private void checkLabels(RankOutput part, NDList labels) {
        Shape shape = part.getWholeFeatures(0);
        if (loss instanceof ShardedLoss && shape.dimension() > 1) {
            ((ShardedLoss) loss).checkLabels(labels, shape.get(shape.dimension() - 1));
        }
    }

    private boolean isComputedOfParts(ParallelContext context, RankOutput part, NDList labels) {
        long rows = part.getPass().getGlobalRows();
        return context.getDataGroup().getSize() > 1
                && part.isBatchCut()
                && !part.getPass().hasSpareRanks()
                && BatchPart.canCut(labels, rows)
                && MeanLosses.contains(loss, part.arrays.getShapes());
    }

    private NDArray compute(
            ParallelContext context, RankOutput part, NDList labels, NDList predictions) {
        boolean ofSlices = part.isSharded() && !(loss instanceof ShardedLoss);
        if (ofSlices && !(loss instanceof AbstractCompositeLoss) && !(loss instanceof IndexLoss)) {
            throw new IllegalArgumentException(
                    loss.getName()
                            + (part.isDeferred()
                                    ? " needs logits, which a fused head never computes. Use"
                                    : " cannot be computed on "
                                            + predictions.head().getShape()
                                            + ", one rank's slice of the classes. Use")
                            + " VocabParallelCrossEntropyLoss, or let a"
                            + " ColumnParallelLinear with optGatherOutput(true) be the last layer."
                            + " For several outputs, add one loss for each to a"
                            + " SimpleCompositeLoss.");
        }
        InPlaceCheck watched = InPlaceCheck.begin("label", labels);
        List<Long> before = part.countLosses();
        try {
            NDList placed = part.getPass().place(labels, predictions);
            NDArray value = part.getPass().takeLoss(valueOf(placed, predictions));
            checkHeads(part, before);
            part.inPlace = part.inPlace == null ? watched.refusal() : part.inPlace;
            return value;
        } catch (RuntimeException e) {
            throw part.getPass().explain(e);
        }
    }

    private NDArray valueOf(NDList labels, NDList predictions) {
        String name = "The loss " + loss.getName();
        NDArray value = randomness.withoutDraws(name, () -> loss.evaluate(labels, predictions));
        if (value == null) {
            throw new IllegalArgumentException(
                    "The loss "
                            + loss.getName()
                            + " has returned null: let its evaluate(labels, predictions) return a"
                            + " scalar, which is computed from the predictions");
        }
        return value;
    }

    /** What a head keeps for the gradient is that of one loss. */
    private void checkHeads(RankOutput part, List<Long> before) {
        for (int i = 0; i < before.size(); i++) {
            DeferredHead head = part.getHeads().get(i);
            if (head.getLosses() - before.get(i) > 1) {
                throw new IllegalArgumentException(
                        "The loss "
                                + loss.getName()
                                + " is computed of "
                                + (head.getLosses() - before.get(i))
                                + " losses of the fused head with the weight "
                                + head.getShape()
                                + ", which keeps what the gradient of one is made of: let one"
                                + " VocabParallelCrossEntropyLoss compute all of it, such as with"
                                + " the label smoothing and the z-loss of LossOptions, or build the"
                                + " head with optFusedLoss(false)");
            }
        }
    }

    /** The mean over the batch is the mean of the ranks' means, each for as many rows as it has. */
    private NDArray average(
            ParallelContext context, RankOutput part, NDList labels, NDManager scope) {
        float weight =
                loss instanceof ShardedLoss
                        ? ((ShardedLoss) loss).getWeight(labels)
                        : part.getPass().getRows();
        boolean wide = part.loss.getDataType() == DataType.FLOAT64;
        DataType type = wide ? DataType.FLOAT64 : DataType.FLOAT32;
        double[] own = {weight * HostReads.number(part.loss), weight};
        NDArray sums = scope.create(own).toType(type, false);
        context.getDataGroup().setIssuer(loss.getClass().getSimpleName());
        context.getDataGroup().allReduce(sums, ReduceOp.SUM);
        double[] total = HostReads.doubles(sums.toType(DataType.FLOAT64, false));
        double rows = total[1] > 0 ? total[1] : 1; // the weights of rows may be small
        part.share = weight / rows;
        return scope.create(total[0] / rows).toType(type, false);
    }
}
