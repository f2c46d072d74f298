package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastLoss;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.head.ClassLabels;
import io.djltp.internal.head.ShardedCrossEntropy;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.internal.parameters.ShardedArray;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

import java.util.Objects;
import java.util.stream.LongStream;

/**
 * Softmax cross entropy of logits that are cut over the ranks by class: the mean over the rows of
 * {@code -log(softmax(logits)[label])}, with no rank ever seeing the logits of another.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], class numbers over all ranks, the same on all ranks
 *   <li>predictions: [x1, ..., xn, classes of the rank], the output of a {@link
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
 * <p>{@link LossOptions} add label smoothing, by PyTorch's rule, a z-loss, weights of the classes,
 * and a sum in place of the mean, or in evaluations the losses of the rows. Of a {@link
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
public class VocabParallelCrossEntropyLoss extends Loss implements ShardedLoss, ForecastLoss {

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
        super(Objects.requireNonNull(name, "name"));
        this.options = Objects.requireNonNull(options, "options");
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException if the logits are not known to be a slice, or a label is not
     *     a class: outside of them, no whole number, or so large that its type is not exact; or if
     *     this is not the loss of the trainer that has returned the predictions
     */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        NDArray logits = predictions.singletonOrThrow();
        ParallelContext context = ParallelContext.current();
        checkOnRanks(logits);
        boolean known = TensorView.of(logits).requiresGradient();
        boolean backward = known && (context == null || context.getPass().isTraining());
        if (backward && context != null && options.reduction() == Reduction.NONE) {
            throw new IllegalArgumentException(
                    "The losses of rows are computed by ranks in evaluations only: train with"
                            + " Reduction.MEAN or Reduction.SUM, and let LossOptions weigh the"
                            + " classes, or ignore rows");
        }
        FusedHead head = FusedHead.of(context, logits);
        if (head != null && context != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            NDArray ids = DelegatedArray.unwrap(only(labels));
            NDArray features = DelegatedArray.unwrap(logits);
            if (!backward) {
                try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                    NDArray value = head.lossOnly(features, ids, options);
                    return context.getPass().enterLoss(value, logits);
                }
            }
            NDArray value = head.evaluate(features, ids, options, context);
            return context.getPass().enterLoss(value, logits);
        }
        if (backward && context == null) {
            return new ShardedCrossEntropy(options).record(logits, only(labels));
        }
        NDArray ids = DelegatedArray.unwrap(only(labels));
        return evaluate(ids, logits, context, backward);
    }

    private void checkOnRanks(NDArray logits) {
        if (ShardedArray.isStandIn(logits)) {
            throw Errors.argument(
                    "The predictions %s lie on the ranks of a ParallelTrainer, which compute the"
                            + " loss of its training configuration only, and not this object, %s:"
                            + " ask trainer.getLoss(), and let a SimpleCompositeLoss of the"
                            + " configuration put several together",
                    logits.getShape(), getName());
        }
    }

    private static NDArray only(NDList labels) {
        Errors.check(
                labels.size() == 1,
                "The loss needs one array of labels, a class for each row, and gets %s. Of"
                        + " several, let an IndexLoss choose one",
                labels.size());
        return labels.head();
    }

    private NDArray evaluate(
            NDArray labels, NDArray logits, @Nullable ParallelContext context, boolean backward) {
        ClassCut classes = ClassCut.of(context, logits, this);
        NDArray own = context == null ? logits : context.getPass().takeLast(logits);
        ShardedCrossEntropy.Result result =
                new ShardedCrossEntropy(options)
                        .evaluate(own, labels, classes.cut(), classes.group(), backward);
        if (!backward) {
            return context == null
                    ? result.value()
                    : context.getPass().enterLoss(result.value(), logits);
        }
        try (NDArray value = result.value();
                NDArray gradient = result.gradient();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            ParallelContext rank = Objects.requireNonNull(context, "rank");
            NDArray scalar =
                    rank.getGradientKeeper()
                            .scalar(own, value, Objects.requireNonNull(gradient, "gradient"));
            return rank.getPass().enterLoss(scalar, logits);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void forecast(PassForecast pass, ForecastArray predictions) {
        if (predictions.region().isShard()) {
            Shape slice = pass.local(predictions);
            long rows = slice.size() / slice.get(slice.dimension() - 1);
            int sums = options.labelSmoothing() > 0 ? 3 : 2; // of each row, in float64
            String issuer = getClass().getSimpleName();
            for (long bytes : new long[] {rows * Float.BYTES, rows * sums * Double.BYTES}) {
                pass.add(
                        issuer,
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        pass.getTensorSize(),
                        bytes);
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public float getWeight(NDList labels) {
        try (NDArray ids = only(labels).toType(DataType.INT64, true)) {
            return (float) LongStream.of(HostReads.longs(ids)).mapToDouble(options::weightOf).sum();
        }
    }

    /** {@inheritDoc} */
    @Override
    public boolean isMean() {
        // smoothed labels count also where the label's own weight is 0, which weights of parts miss
        boolean whole = options.classWeights() != null && options.labelSmoothing() > 0;
        return options.reduction() == Reduction.MEAN && !whole;
    }

    /** {@inheritDoc} */
    @Override
    public void checkLabels(NDList labels, long classes) {
        ClassLabels.read(only(labels), classes, options.ignoreIndex());
    }
}
