package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DelegatedArray;

import org.jspecify.annotations.Nullable;

/**
 * How the classes of logits are cut, and over which ranks.
 *
 * @param group the ranks, or {@code null} outside of ranks
 * @param cut the cut of the classes
 */
record ClassCut(@Nullable Communicator group, Cut cut) {

    /**
     * Finds the cut of logits.
     *
     * @param context the rank, or {@code null} outside of ranks
     * @param logits the logits, [x1, ..., xn, classes of this rank]
     * @param user the loss or evaluator, which errors of collective operations then name
     * @return the cut
     * @throws IllegalArgumentException if the logits are not known to be the shard of the rank
     */
    static ClassCut of(@Nullable ParallelContext context, NDArray logits, Object user) {
        Shape shape = DelegatedArray.unwrap(logits).getShape();
        long columns = shape.get(shape.dimension() - 1);
        Communicator group = context == null ? null : context.getTensorGroup();
        if (context == null || group == null || group.getSize() == 1) {
            return new ClassCut(group, Cut.ofLengths(columns));
        }
        group.setIssuer(user.getClass().getSimpleName());
        ShardedLayout layout = context.getPass().layoutOf(logits);
        if (layout == null) {
            throw Errors.argument(
                    "The logits %s of rank %s are not known to be a slice of the classes. A"
                            + " vocabulary parallel loss needs the output of a"
                            + " ColumnParallelLinear without optGatherOutput, which a"
                            + " ParallelPredictor gathers; for gathered logits [rows, classes] use"
                            + " DJL's SoftmaxCrossEntropyLoss.",
                    shape, group.getRank());
        }
        long length = layout.cut().getShardLength(group.getRank());
        if (length != columns) {
            throw Errors.argument(
                    "The logits %s of rank %s should have %s of %s classes",
                    shape, group.getRank(), length, layout.cut().getLength());
        }
        return new ClassCut(group, layout.cut());
    }
}
