package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.loss.Loss;

import io.djltp.collective.ReduceOp;
import io.djltp.loss.ShardedLoss;
import io.djltp.mesh.ParallelContext;

/**
 * The user's loss as a rank computes it: of its part of the batch, or of its slice of the classes.
 */
final class LossOnRanks {

    private final Loss loss;

    LossOnRanks(Loss loss) {
        this.loss = loss;
    }

    /**
     * Computes the loss of a rank's part and leaves it there, with what it counts for and with the
     * loss of the whole batch, which is the same on all ranks.
     *
     * @param context the rank
     * @param part the rank's output
     * @param labels the labels of the whole batch
     * @param manager the manager of what is kept of the forward pass
     */
    void evaluate(ParallelContext context, RankOutput part, NDList labels, NDManager manager) {
        if (part.isSharded() && !(loss instanceof ShardedLoss)) {
            throw new IllegalArgumentException(
                    loss.getName()
                            + " cannot be computed on "
                            + part.arrays.head().getShape()
                            + ", one rank's slice of the classes. Use"
                            + " VocabParallelCrossEntropyLoss, or build the last"
                            + " ColumnParallelLinear with optGatherOutput(true) and without"
                            + " optFusedLoss.");
        }
        NDManager scope = part.newScope(manager, context);
        NDList own = BatchPart.of(labels, context, part.batchCut, scope);
        part.loss = loss.evaluate(own, part.arrays);
        part.loss.attach(manager);
        part.reported = part.batchCut ? reduce(context, part, own, manager) : part.loss;
    }

    /** The mean over the batch is the mean of the ranks' means, each for as many rows as it has. */
    private NDArray reduce(
            ParallelContext context, RankOutput part, NDList labels, NDManager manager) {
        float weight =
                loss instanceof ShardedLoss
                        ? ((ShardedLoss) loss).getWeight(labels)
                        : labels.head().getShape().get(0);
        float[] total;
        try (NDArray sums = manager.create(new float[] {weight * part.loss.getFloat(), weight})) {
            context.getDataGroup().setIssuer(loss.getClass().getSimpleName());
            context.getDataGroup().allReduce(sums, ReduceOp.SUM);
            total = sums.toFloatArray();
        }
        float rows = Math.max(1, total[1]);
        part.share = weight / rows;
        return manager.create(total[0] / rows);
    }
}
