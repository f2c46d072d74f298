package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.training.evaluator.AbstractAccuracy;
import ai.djl.util.Pair;

import io.djltp.collective.ReduceOp;
import io.djltp.head.LossOptions;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.update.RowOps;

/**
 * Accuracy and top-k accuracy of logits that are cut over the ranks by class, without gathering
 * them: a row is right if fewer than k classes of all ranks come before its label. Among equal
 * logits the class with the lower number comes first, as in DJL's {@code Accuracy}.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], class numbers over all ranks
 *   <li>predictions: [x1, ..., xn, classes/p] on each of the p ranks; whole logits are taken too
 * </ul>
 *
 * <p>Rows whose label is that of rows that do not count are left out, as the loss leaves them out.
 *
 * <p>Two all-reduces of one value a row each.
 */
@SuppressWarnings("try") // a scope is used by being open
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
        if (k < 1) {
            throw new IllegalArgumentException("The k of a top-k accuracy must be 1 or more: " + k);
        }
        this.k = k;
        this.ignoreIndex = ignoreIndex;
    }

    /** {@inheritDoc} */
    @Override
    protected Pair<Long, NDArray> accuracyHelper(NDList labels, NDList predictions) {
        NDArray right =
                predictions instanceof ShardedPredictions
                        ? ((ShardedPredictions) predictions).evaluateOnRanks(labels, this::right)
                        : right(labels, predictions);
        try (NDArray counted = labels.singletonOrThrow().neq(ignoreIndex);
                NDArray count = counted.countNonzero()) {
            return new Pair<>(count.getLong(), right);
        }
    }

    /** Returns for each row whether it is right; on a rank, over all ranks. */
    private NDArray right(NDList labels, NDList predictions) {
        NDArray logits = predictions.singletonOrThrow();
        ParallelContext context = ParallelContext.current();
        NDManager manager = logits.getManager();
        FusedHead head = FusedHead.of(context, logits);
        if (head != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            return right(head, logits, labels.singletonOrThrow());
        }
        try (NDManager scope = manager.newSubManager();
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            VocabShard shard =
                    new VocabShard(
                            scope, context, logits, labels.singletonOrThrow(), ignoreIndex, this);
            NDArray label = shard.reduce(shard.ownedLogit(), ReduceOp.SUM);
            NDArray wide = shard.logits.toType(DataType.FLOAT32, false);
            NDArray before = RowOps.countBefore(wide, label, shard.labels.sub(shard.start));
            NDArray right = shard.reduce(before, ReduceOp.SUM).lt(k);
            right = right.logicalAnd(shard.valid.neq(0));
            right.attach(manager);
            return right;
        }
    }

    private NDArray right(FusedHead head, NDArray features, NDArray labels) {
        NDManager manager = features.getManager();
        try (NDManager scope = manager.newSubManager()) {
            NDArray ids = labels.flatten().toType(DataType.INT64, true);
            ids.attach(scope);
            NDArray counted = ids.neq(ignoreIndex);
            NDArray classes = ids.mul(counted.toType(DataType.INT64, false)); // 0 for no class
            NDArray before = head.countBefore(features, classes.reshape(labels.getShape()));
            before.attach(scope);
            NDArray right = before.lt(k).logicalAnd(counted.reshape(before.getShape()));
            right.attach(manager);
            return right;
        }
    }
}
