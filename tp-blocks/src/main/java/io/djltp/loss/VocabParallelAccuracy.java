package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.evaluator.AbstractAccuracy;
import ai.djl.util.Pair;

import io.djltp.head.LossOptions;
import io.djltp.internal.Errors;
import io.djltp.internal.head.ChunkedEvaluation;
import io.djltp.internal.head.ClassLabels;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.loss.ShardedPredictions;
import io.djltp.internal.rank.ParallelContext;

import java.util.stream.LongStream;

/**
 * Accuracy and top-k accuracy of logits that are cut over the ranks by class, without gathering
 * them: a row is right if fewer than k classes of all ranks come before its label. Among equal
 * logits the class with the lower number comes first, as in DJL's {@code Accuracy}.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], class numbers over all ranks
 *   <li>predictions: [x1, ..., xn, classes of the rank] on each rank, by any cut that has each
 *       class on one rank; whole logits are taken too
 * </ul>
 *
 * <p>Rows whose label is that of rows that do not count are left out, as the loss leaves them out.
 *
 * <p>Two all-reduces of one value a row each.
 */
public class VocabParallelAccuracy extends AbstractAccuracy {

    private final int k;
    private final long ignoreIndex;

    /** Creates an accuracy named "Accuracy". */
    public VocabParallelAccuracy() {
        this("Accuracy", 1);
    }

    /**
     * Creates a top-k accuracy named "Top_k_Accuracy", with k as a number.
     *
     * @param k how many classes may be tried
     */
    public VocabParallelAccuracy(int k) {
        this("Top_" + k + "_Accuracy", k);
    }

    /**
     * Creates a top-k accuracy.
     *
     * @param name the name
     * @param k how many classes may be tried, 1 or more
     */
    public VocabParallelAccuracy(String name, int k) {
        this(name, k, LossOptions.DEFAULT_IGNORE_INDEX);
    }

    /**
     * Creates a top-k accuracy.
     *
     * @param name the name
     * @param k how many classes may be tried, 1 or more
     * @param ignoreIndex the label of rows that do not count, -100 by default
     */
    public VocabParallelAccuracy(String name, int k, long ignoreIndex) {
        super(name);
        Errors.check(k >= 1, "The k of a top-k accuracy must be 1 or more: %s", k);
        this.k = k;
        this.ignoreIndex = ignoreIndex;
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if a label is no class, before a rank begins to count
     */
    @Override
    protected Pair<Long, NDArray> accuracyHelper(NDList labels, NDList predictions) {
        long[] ids =
                ClassLabels.read(labels.singletonOrThrow(), countClasses(predictions), ignoreIndex);
        ShardedPredictions sharded = ShardedPredictions.of(predictions);
        NDArray right =
                sharded != null
                        ? sharded.evaluateOnRanks(labels, this::right)
                        : right(labels, predictions);
        return new Pair<>(LongStream.of(ids).filter(id -> id != ignoreIndex).count(), right);
    }

    /** A rank has a slice of the classes: it checks its labels where it knows all. */
    private static long countClasses(NDList predictions) {
        Shape shape = predictions.singletonOrThrow().getShape();
        boolean whole = ParallelContext.current() == null;
        return whole ? shape.get(shape.dimension() - 1) : Long.MAX_VALUE;
    }

    /** Returns for each row whether it is right; on a rank, over all ranks. */
    private NDArray right(NDList labels, NDList predictions) {
        NDArray rows = predictions.singletonOrThrow();
        NDManager manager = rows.getManager();
        try (NDManager scope = manager.newSubManager()) {
            NDArray ids = labels.singletonOrThrow().toType(DataType.INT64, true);
            ids.attach(scope);
            NDArray counted = ids.neq(ignoreIndex);
            NDArray classes = ids.mul(counted.toType(DataType.INT64, false)); // 0 for no class
            NDArray before = countBefore(rows, classes);
            before.attach(scope);
            NDArray right = before.lt(k).logicalAnd(counted.flatten());
            right.attach(manager);
            return right;
        }
    }

    /** Returns how many classes of all ranks come before the label of each row, [rows]. */
    private NDArray countBefore(NDArray rows, NDArray labels) {
        ParallelContext context = ParallelContext.current();
        FusedHead head = FusedHead.of(context, rows);
        if (head != null && context != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            return head.countBefore(rows, labels);
        }
        ClassCut classes = ClassCut.of(context, rows, this);
        try (ChunkedEvaluation chunks =
                new ChunkedEvaluation(classes.group(), classes.cut(), Long.MAX_VALUE, 0, null)) {
            return chunks.countBefore(rows, null, null, labels);
        }
    }
}
