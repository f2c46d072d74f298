package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.training.loss.Loss;

import io.djltp.collective.ReduceOp;
import io.djltp.head.LossOptions;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;
import io.djltp.update.RowOps;

/**
 * Softmax cross entropy of logits that are cut over the ranks by class: the mean over the rows of
 * {@code -log(softmax(logits)[label])}, with no rank ever seeing the logits of another.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], class numbers over all ranks, the same on all ranks
 *   <li>predictions: [x1, ..., xn, classes/p], the output of a {@link
 *       io.djltp.nn.ColumnParallelLinear} without {@code optGatherOutput}, or that of a {@link
 *       io.djltp.nn.ClassificationHead}
 *   <li>loss: a scalar in float32, the same on all ranks
 * </ul>
 *
 * <p>Two all-reduces: the largest logit of each row, then the sum of the exponentials and the logit
 * of the label together. The gradient, softmax minus one-hot, is made from the same softmax and
 * needs no communication. Logits in 16 bits are computed in 32, and their gradient comes back in
 * 16.
 *
 * <p>{@link LossOptions} add label smoothing, by PyTorch's rule, and a z-loss. Of a {@link
 * io.djltp.nn.ClassificationHead} the loss is computed in chunks of the classes, without the
 * logits.
 *
 * <p>On whole logits, as under DJL's own trainer or with one rank, it is DJL's {@code
 * SoftmaxCrossEntropyLoss} with sparse labels.
 *
 * <p>After Megatron-LM's vocabulary parallel cross entropy (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>).
 */
@SuppressWarnings("try") // a scope is used by being open
public class VocabParallelCrossEntropyLoss extends Loss implements ShardedLoss {

    /** The label of rows that do not count when nothing else is said, as in PyTorch. */
    public static final long DEFAULT_IGNORE_INDEX = LossOptions.DEFAULT_IGNORE_INDEX;

    private final LossOptions options;

    /** Creates a loss named "VocabParallelCrossEntropyLoss". */
    public VocabParallelCrossEntropyLoss() {
        this("VocabParallelCrossEntropyLoss", DEFAULT_IGNORE_INDEX);
    }

    /**
     * Creates a loss.
     *
     * @param name the name
     * @param ignoreIndex the label of rows that do not count: they have no loss and no gradient,
     *     and the mean is over the others
     */
    public VocabParallelCrossEntropyLoss(String name, long ignoreIndex) {
        this(name, new LossOptions(ignoreIndex, 0, 0));
    }

    /**
     * Creates a loss with label smoothing or z-loss.
     *
     * @param name the name
     * @param options what is computed beside the mean of the cross entropies
     */
    public VocabParallelCrossEntropyLoss(String name, LossOptions options) {
        super(name);
        this.options = options;
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if the logits are not known to be a slice, or a label is not
     *     a class
     */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        NDArray logits = predictions.singletonOrThrow();
        ParallelContext context = ParallelContext.current();
        boolean known = TensorView.of(logits).requiresGradient();
        boolean backward = known && (context == null || context.getPass().isTraining());
        if (known && !backward) {
            context.getPass().getTrace().takeValues(logits); // to be checked, not differentiated
        }
        FusedHead head = FusedHead.of(context, logits);
        if (head != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            NDArray ids = labels.singletonOrThrow();
            if (!backward) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    return head.lossOnly(logits, ids, options);
                }
            }
            NDArray value = head.evaluate(logits, ids, options, context.getGradientKeeper());
            context.getPass().getTrace().takeSlices(context.getGradientKeeper().getLastNode());
            return value;
        }
        if (backward && context == null) {
            return evaluateWhole(labels.singletonOrThrow(), logits);
        }
        try (NDManager scope = logits.getManager().newSubManager();
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            VocabShard shard =
                    new VocabShard(
                            scope,
                            context,
                            logits,
                            labels.singletonOrThrow(),
                            options.ignoreIndex(),
                            this);
            NDArray value = compute(shard, backward, logits, context);
            value.attach(logits.getManager());
            return value;
        }
    }

    /** {@inheritDoc} */
    @Override
    public float getWeight(NDList labels) {
        try (NDArray valid = labels.singletonOrThrow().neq(options.ignoreIndex());
                NDArray count = valid.countNonzero()) {
            return count.getLong();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void checkLabels(NDList labels, long classes) {
        VocabShard.checkLabels(labels.singletonOrThrow(), classes, options.ignoreIndex());
    }

    private NDArray compute(
            VocabShard shard, boolean backward, NDArray logits, ParallelContext context) {
        NDArray wide = shard.logits.toType(DataType.FLOAT32, false);
        NDArray localTop = RowOps.max(wide); // [rows]
        if (isForbidden(localTop)) {
            wide = wide.maximum(-Float.MAX_VALUE); // a softmax of minus infinities is NaN
        }
        NDArray softmax = wide.softmax(1); // of this rank's classes among themselves
        NDArray top = shard.reduce(localTop.duplicate(), ReduceOp.MAX);
        // of exp(z - top): the largest probability, which is never tiny, is 1 / sum exp(z - max).
        // A log-sum-exp for each rank would lose the digits that the logits have before the point.
        NDArray localSum = localTop.sub(top).exp().div(RowOps.max(softmax));
        NDList local = new NDList(localSum, shard.ownedLogit(top));
        float alpha = options.labelSmoothing();
        if (alpha > 0) {
            local.add(wide.sub(top.expandDims(1)).sum(new int[] {1}).div(shard.classes));
        }
        NDArray sums = NDArrays.stack(local);
        shard.reduce(sums, ReduceOp.SUM); // [2 or 3, rows]
        NDArray sum = sums.get(0);
        NDArray count = shard.valid.sum().maximum(1);
        NDArray logSum = sum.log();
        NDArray losses = logSum.sub(sums.get(1));
        if (alpha > 0) {
            losses = losses.mul(1 - alpha).add(logSum.sub(sums.get(2)).mul(alpha));
        }
        NDArray logZ = logSum.add(top);
        if (options.zLoss() > 0) {
            losses = losses.add(logZ.square().mul(options.zLoss()));
        }
        NDArray value = losses.mul(shard.valid).sum().div(count);
        if (!backward) {
            return value;
        }
        NDArray rowWeight = shard.valid.div(count);
        NDArray factor = localSum.div(sum).mul(rowWeight);
        if (options.zLoss() > 0) {
            factor = factor.mul(logZ.mul(2 * options.zLoss()).add(1));
        }
        softmax.muli(factor.expandDims(1)); // of all classes
        if (alpha > 0) {
            softmax.subi(rowWeight.mul(alpha / shard.classes).expandDims(1));
        }
        RowOps.addAt(softmax, shard.column, rowWeight.mul(shard.owned).mul(alpha - 1));
        NDArray gradient = softmax.toType(logits.getDataType(), false).reshape(logits.getShape());
        try (Autograd.GradMode mode = Autograd.gradMode(true)) {
            NDArray scalar = context.getGradientKeeper().scalar(logits, value, gradient);
            if (shard.size() > 1) {
                context.getPass().getTrace().takeSlices(context.getGradientKeeper().getLastNode());
            }
            return scalar;
        }
    }

    /** Returns whether all classes of this rank have the logit minus infinity in some row. */
    private static boolean isForbidden(NDArray localTop) {
        return localTop.size() > 0 && localTop.min().getFloat() == Float.NEGATIVE_INFINITY;
    }

    /**
     * The same on whole logits in operations that autograd knows: for DJL's own trainer. Logits in
     * 64 bits are computed in 64, all others in 32.
     */
    private NDArray evaluateWhole(NDArray labels, NDArray logits) {
        int last = logits.getShape().dimension() - 1;
        long classes = logits.getShape().get(last);
        NDArray ids = labels.flatten().toType(DataType.INT64, true);
        NDArray valid = ids.neq(options.ignoreIndex());
        NDArray counted = valid.toType(DataType.INT64, false);
        NDArray rows = logits.reshape(-1, classes);
        boolean isDouble = logits.getDataType() == DataType.FLOAT64;
        NDArray wide = isDouble ? rows : Autograd.toFloat32(rows);
        NDArray logProbabilities = wide.logSoftmax(1);
        NDArray column = ids.mul(counted).expandDims(1);
        NDArray picked = logProbabilities.gather(column, 1).flatten();
        NDArray losses = picked.neg();
        NDManager manager = logits.getManager(); // constants must outlive the backward pass
        if (options.labelSmoothing() > 0) {
            NDArray alpha = manager.create(options.labelSmoothing());
            NDArray rest = manager.create(1 - options.labelSmoothing());
            NDArray mean = logProbabilities.mean(new int[] {1});
            losses = losses.mul(rest).sub(mean.mul(alpha));
        }
        if (options.zLoss() > 0) {
            NDArray logZ = wide.gather(column, 1).flatten().sub(picked);
            losses = losses.add(logZ.square().mul(manager.create(options.zLoss())));
        }
        NDArray weight = valid.toType(DataType.FLOAT32, false);
        NDArray value = losses.mul(weight).sum().div(weight.sum().maximum(1));
        return isDouble ? Autograd.toFloat32(value) : value;
    }
}
