package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.head.ClassLabels;
import io.djltp.internal.head.ShardedCrossEntropy;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.rank.ParallelContext;

import org.jspecify.annotations.Nullable;

/**
 * Softmax cross entropy of logits that are cut over the ranks by class: the mean over the rows of
 * {@code -log(softmax(logits)[label])}, with no rank ever seeing the logits of another.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn], class numbers over all ranks, the same on all ranks; or several of a
 *       row, [x1, ..., xn, width], filled up with -1
 *   <li>predictions: [x1, ..., xn, classes of the rank], the output of a {@link
 *       io.djltp.nn.ColumnParallelLinear} without {@code optGatherOutput}, or that of a {@link
 *       io.djltp.nn.ClassificationHead}
 *   <li>loss: a scalar in float32, the same on all ranks
 * </ul>
 *
 * <p>One all-gather: the largest logit of each row, the sum of the exponentials and the logit of
 * the label, in float64. The gradient, softmax minus one-hot, is made from the same softmax and
 * needs no communication. Logits in 16 bits are computed in 32, and their gradient comes back in
 * 16.
 *
 * <p>Of a row with several labels it is the mean over these. A row without labels has no loss, and
 * does not count in the mean over the rows. Weights of the classes weigh each label, such as by its
 * propensity, and a row counts as much as the mean weight of its labels.
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
public class VocabParallelCrossEntropyLoss extends ClassLoss {

    /** The label of rows that do not count when nothing else is said, as in PyTorch. */
    public static final long DEFAULT_IGNORE_INDEX = LossOptions.DEFAULT_IGNORE_INDEX;

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
        super(name, options);
    }

    @Override
    NDArray ofHead(FusedHead head, NDArray features, NDArray labels, ParallelContext context) {
        return head.evaluate(features, labels, options, context);
    }

    @Override
    NDArray ofHead(FusedHead head, NDArray features, NDArray labels) {
        return head.lossOnly(features, labels, options);
    }

    @Override
    ShardedCrossEntropy.Result ofLogits(
            NDArray logits,
            NDArray labels,
            Cut cut,
            @Nullable Communicator group,
            boolean withGradient) {
        return new ShardedCrossEntropy(options).evaluate(logits, labels, cut, group, withGradient);
    }

    /** {@inheritDoc} */
    @Override
    public void forecast(PassForecast pass, ForecastArray predictions) {
        if (predictions.region().isShard()) {
            Shape slice = pass.local(predictions);
            long rows = slice.size() / slice.get(slice.dimension() - 1);
            // of one label: sum, largest logit, label's logit, and with smoothing the sum of all
            int numbers = options.labelSmoothing() > 0 ? 4 : 3;
            pass.add(
                    getClass().getSimpleName(),
                    Direction.FORWARD,
                    Collective.ALL_GATHER,
                    pass.getTensorSize(),
                    rows * numbers * Double.BYTES * pass.getTensorSize());
        }
    }

    /** {@inheritDoc} */
    @Override
    public float getWeight(NDList labels, Shape predictions) {
        return (float) ClassLabels.weight(only(labels), predictions, options);
    }

    /** {@inheritDoc} */
    @Override
    public boolean isMean() {
        // smoothed labels count also where the label's own weight is 0, which weights of parts miss
        boolean whole = options.classWeights() != null && options.labelSmoothing() > 0;
        return options.reduction() == Reduction.MEAN && !whole;
    }
}
