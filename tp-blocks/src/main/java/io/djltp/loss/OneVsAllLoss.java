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
import io.djltp.internal.head.OneVsAll;
import io.djltp.internal.head.ShardedCrossEntropy;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.rank.ParallelContext;

import org.jspecify.annotations.Nullable;

/**
 * A loss that tells each class from all others, for rows with any number of labels: the mean over
 * the rows of the sum over the classes. The logits are cut over the ranks by class, or those of a
 * fused {@link io.djltp.nn.ClassificationHead}.
 *
 * <ul>
 *   <li>labels: [x1, ..., xn] or [x1, ..., xn, width], class numbers over all ranks, the same on
 *       all ranks, filled up with -1: no label. A row may have none
 *   <li>predictions: as of {@link VocabParallelCrossEntropyLoss}
 *   <li>loss: a scalar in float32, the same on all ranks
 * </ul>
 *
 * <p>No rank needs anything of the others but their part of the sum: one all-reduce of a number. A
 * head with {@code optUpdateInLoss(true)} computes loss, gradient and update in one pass over the
 * weight. Of a head with {@code optSampleShare} the drawn classes that are no label of the batch
 * stand for all of their kind: each counts as often as there are classes for one that was drawn.
 */
public class OneVsAllLoss extends ClassLoss {

    private final OneVsAll rule;

    private OneVsAllLoss(OneVsAll rule) {
        super("OneVsAllLoss", rule.options());
        this.rule = rule;
    }

    private static OneVsAllLoss of(OneVsAll.Kind kind) {
        LossOptions options = new LossOptions(ClassLabels.FILL, 0, 0);
        return new OneVsAllLoss(new OneVsAll(kind, options, null));
    }

    /**
     * Returns the binary cross entropy: {@code log(1 + exp(-z))} of the logit of a label, and
     * {@code log(1 + exp(z))} of another class, as PyTorch's {@code BCEWithLogitsLoss}.
     *
     * @return the loss
     */
    public static OneVsAllLoss binaryCrossEntropy() {
        return of(OneVsAll.Kind.BINARY_CROSS_ENTROPY);
    }

    /**
     * Returns the squared hinge loss: {@code max(0, 1 - z)²} of the logit of a label, and {@code
     * max(0, 1 + z)²} of another class.
     *
     * @return the loss
     */
    public static OneVsAllLoss squaredHinge() {
        return of(OneVsAll.Kind.SQUARED_HINGE);
    }

    /**
     * Returns the same loss with weights of the classes, by which both of their terms are
     * multiplied.
     *
     * @param weights the weights of all classes, 0 or more
     * @return the loss
     * @throws IllegalArgumentException if a weight is out of its range
     */
    public OneVsAllLoss withClassWeights(float... weights) {
        return new OneVsAllLoss(
                new OneVsAll(rule.kind(), options.withClassWeights(weights), rule.positives()));
    }

    /**
     * Returns the same loss with weights of labels, such as inverse propensities, by which the term
     * of a class is multiplied in rows that it is a label of.
     *
     * @param weights the weights of all classes, 0 or more
     * @return the loss
     * @throws IllegalArgumentException if a weight is out of its range
     */
    public OneVsAllLoss withPositiveWeights(float... weights) {
        LossOptions.DEFAULT.withClassWeights(weights); // checks them
        return new OneVsAllLoss(new OneVsAll(rule.kind(), options, weights.clone()));
    }

    /**
     * Returns the same loss with another reduction.
     *
     * @param reduction what becomes of the losses of the rows; those of the rows in evaluations
     *     only
     * @return the loss
     */
    public OneVsAllLoss withReduction(Reduction reduction) {
        return new OneVsAllLoss(
                new OneVsAll(rule.kind(), options.withReduction(reduction), rule.positives()));
    }

    @Override
    NDArray ofHead(FusedHead head, NDArray features, NDArray labels, ParallelContext context) {
        return head.evaluate(features, labels, rule, context);
    }

    @Override
    NDArray ofHead(FusedHead head, NDArray features, NDArray labels) {
        return head.lossOnly(features, labels, rule);
    }

    @Override
    ShardedCrossEntropy.Result ofLogits(
            NDArray logits,
            NDArray labels,
            Cut cut,
            @Nullable Communicator group,
            boolean withGradient) {
        return rule.evaluate(logits, labels, cut, group, withGradient);
    }

    /** {@inheritDoc} */
    @Override
    public void forecast(PassForecast pass, ForecastArray predictions) {
        if (predictions.region().isShard()) {
            pass.add(
                    getClass().getSimpleName(),
                    Direction.FORWARD,
                    Collective.ALL_REDUCE,
                    pass.getTensorSize(),
                    Double.BYTES);
        }
    }

    /**
     * {@inheritDoc}
     *
     * @return the number of rows
     */
    @Override
    public float getWeight(NDList labels, Shape predictions) {
        return predictions.slice(0, predictions.dimension() - 1).size();
    }

    /** {@inheritDoc} */
    @Override
    public boolean isMean() {
        return options.reduction() == Reduction.MEAN;
    }
}
