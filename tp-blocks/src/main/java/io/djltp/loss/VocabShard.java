package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;

/**
 * A rank's slice of the logits with the labels of its rows, and where the classes of the labels lie
 * in it. Everything here has one element a row; the logits themselves are only looked at.
 */
final class VocabShard {

    private final Communicator group;
    final NDArray logits; // [rows, classes of this rank]
    final NDArray labels; // [rows], int64, over all classes
    final NDArray valid; // [rows], float32: 0 where the label is to be ignored
    final NDArray owned; // [rows], float32: 1 where the label's class is on this rank
    final NDArray column; // [rows], int64: the label's class on this rank, where owned
    final long start;
    final long classes; // of all ranks

    /**
     * Lays labels over logits.
     *
     * @param manager the manager of what is made here
     * @param context the rank, or {@code null} outside of ranks
     * @param logits the logits, [x1, ..., xn, classes of this rank]
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param ignoreIndex the label of rows that do not count
     * @param user the loss or evaluator, which errors of collective operations then name
     */
    VocabShard(
            NDManager manager,
            ParallelContext context,
            NDArray logits,
            NDArray labels,
            long ignoreIndex,
            Object user) {
        group = context == null ? null : context.getTensorGroup();
        if (group != null) {
            group.setIssuer(user.getClass().getSimpleName());
        }
        Shape shape = logits.getShape();
        long columns = shape.get(shape.dimension() - 1);
        classes = classes(context, logits);
        start = group == null ? 0 : Cut.balanced(classes, size()).getRange(group.getRank()).start();
        this.logits = Autograd.detach(logits, manager).reshape(-1, columns);
        this.labels = labels.flatten().toType(DataType.INT64, true);
        this.labels.attach(manager);
        if (this.labels.size() != this.logits.getShape().get(0)) {
            throw new IllegalArgumentException(
                    "The labels "
                            + labels.getShape()
                            + " do not fit the logits "
                            + shape
                            + ": one label for each row of logits is needed");
        }
        NDArray counts = this.labels.neq(ignoreIndex);
        checkLabels(this.labels, classes, ignoreIndex);
        valid = counts.toType(DataType.FLOAT32, false);
        NDArray local = this.labels.sub(start);
        NDArray here = local.gte(0).logicalAnd(local.lt(columns)).logicalAnd(counts);
        owned = here.toType(DataType.FLOAT32, false);
        column = local.mul(here.toType(DataType.INT64, false)); // 0 where not owned
    }

    /**
     * Returns the number of classes of all ranks.
     *
     * @param context the rank, or {@code null} outside of ranks
     * @param logits the logits, [x1, ..., xn, classes of this rank]
     * @return the number of classes
     * @throws IllegalArgumentException if the logits are not known to be the slice of the rank
     */
    static long classes(ParallelContext context, NDArray logits) {
        Shape shape = logits.getShape();
        long columns = shape.get(shape.dimension() - 1);
        Communicator group = context == null ? null : context.getTensorGroup();
        if (group == null || group.getSize() == 1) {
            return columns;
        }
        ShardedLayout layout = context.getPass().layoutOf(logits);
        if (layout == null) {
            throw new IllegalArgumentException(
                    "The logits "
                            + shape
                            + " of rank "
                            + group.getRank()
                            + " are not known to be a slice of the classes. A vocabulary"
                            + " parallel loss needs the output of a ColumnParallelLinear"
                            + " without optGatherOutput; for gathered logits use DJL's"
                            + " SoftmaxCrossEntropyLoss.");
        }
        ShardRange range = layout.cut().getRange(group.getRank());
        if (range.length() != columns) {
            throw new IllegalArgumentException(
                    "The logits "
                            + shape
                            + " of rank "
                            + group.getRank()
                            + " should have "
                            + range.length()
                            + " of "
                            + layout.cut().getLength()
                            + " classes");
        }
        return layout.cut().getLength();
    }

    /**
     * Checks that labels are classes.
     *
     * @param labels the labels, of any numeric type
     * @param classes the number of classes
     * @param ignoreIndex the label of rows that do not count
     * @throws IllegalArgumentException if one of the others is no class
     */
    static void checkLabels(NDArray labels, long classes, long ignoreIndex) {
        if (labels.size() == 0) {
            return;
        }
        try (NDManager scope = labels.getManager().newSubManager()) {
            NDArray ids = labels.toType(DataType.INT64, true);
            ids.attach(scope);
            NDArray counts = ids.neq(ignoreIndex).toType(DataType.INT64, false);
            NDArray checked = ids.mul(counts); // 0 where ignored
            long lowest = checked.min().getLong();
            long highest = checked.max().getLong();
            if (lowest < 0 || highest >= classes) {
                throw new IllegalArgumentException(
                        "A label is "
                                + (lowest < 0 ? lowest : highest)
                                + ", but the labels of "
                                + classes
                                + " classes are 0 to "
                                + (classes - 1)
                                + " (or "
                                + ignoreIndex
                                + " for a row that does not count)");
            }
        }
    }

    int size() {
        return group == null ? 1 : group.getSize();
    }

    /** Returns the logit of each row's label on the rank that owns it and zero on the others. */
    NDArray ownedLogit() {
        NDArray picked = logits.gather(column.expandDims(1), 1).flatten();
        return onlyOwned(picked.toType(DataType.FLOAT32, false));
    }

    /** Returns the same above an offset of each row, [rows]. */
    NDArray ownedLogit(NDArray offset) {
        return onlyOwned(ownedLogit().sub(offset));
    }

    /** Not by a product: the logit of another class may be infinite. */
    private NDArray onlyOwned(NDArray values) {
        return NDArrays.where(owned.neq(0), values, values.zerosLike());
    }

    /** Reduces an array over the ranks, in place. */
    NDArray reduce(NDArray array, ReduceOp op) {
        if (size() > 1) {
            group.allReduce(array, op);
        }
        return array;
    }
}
