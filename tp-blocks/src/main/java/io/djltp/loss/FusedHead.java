package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.head.FusedCrossEntropy;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Autograd;
import io.djltp.torch.GradientKeeper;
import io.djltp.update.WeightUpdate;

/**
 * A rank's last layer whose logits are never computed as a whole: its loss, and the update of its
 * weight, are made from the features that it gets.
 *
 * <p>The weight has no gradient. What one is made of is kept from the loss to the trainer's step,
 * for one batch.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FusedHead implements AutoCloseable {

    private final Parameter weight;
    private final Parameter bias;
    private final FusedCrossEntropy function;
    private NDArray weightValue;
    private NDArray biasValue;
    private NDArray biasGradient;
    private long losses;
    private long updates;
    private Float scale; // of the loss in the backward pass, null before it

    /**
     * Creates a head.
     *
     * @param weight the weight
     * @param bias the bias, or {@code null}
     * @param function the function
     */
    public FusedHead(Parameter weight, Parameter bias, FusedCrossEntropy function) {
        this.weight = weight;
        this.bias = bias;
        this.function = function;
    }

    /**
     * Returns the head that an array is the features of.
     *
     * @param context the rank, or {@code null} outside of ranks
     * @param array what a loss got as its predictions
     * @return the head, or {@code null} if the array is what it seems to be
     */
    public static FusedHead of(ParallelContext context, NDArray array) {
        ShardedLayout layout = context == null ? null : context.getPass().layoutOf(array);
        return layout == null ? null : layout.head();
    }

    /**
     * Sets the rank's values of the parameters.
     *
     * @param weightShard the shard of the weight
     * @param biasShard the shard of the bias, or {@code null}
     */
    public void setValues(NDArray weightShard, NDArray biasShard) {
        weightValue = weightShard;
        biasValue = biasShard;
    }

    /**
     * Returns the weight, which the head updates itself.
     *
     * @return the weight
     */
    public Parameter getWeight() {
        return weight;
    }

    /**
     * Returns the bias, whose gradient comes from {@link #update}.
     *
     * @return the bias, or {@code null}
     */
    public Parameter getBias() {
        return bias;
    }

    /**
     * Computes the loss.
     *
     * @param features the features, which require a gradient
     * @param labels the labels
     * @param options the options of the loss
     * @param keeper where the gradient of the features is left
     * @return the loss as a part of the graph, a scalar
     * @throws IllegalStateException if there is a gradient that no step has used
     */
    public NDArray evaluate(
            NDArray features, NDArray labels, LossOptions options, GradientKeeper keeper) {
        if (hasGradient() && scale != 0) {
            throw new IllegalStateException(
                    "A layer with optFusedLoss(true) keeps the gradient of one batch: call"
                            + " trainer.step() after each backward pass, or build the layer without"
                            + " optFusedLoss to accumulate the gradients of several batches");
        }
        scale = null;
        long number = ++losses;
        FusedCrossEntropy.Result result =
                function.evaluate(features, weightValue, biasValue, labels, options);
        try (NDArray value = result.value();
                NDArray gradient = result.gradient();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            return keeper.scalar(features, value, gradient, above -> begin(number, (float) above));
        }
    }

    private void begin(long number, float above) {
        if (number != losses) {
            throw new IllegalStateException(
                    "Another loss of the same layer with optFusedLoss(true) has been computed since"
                            + " the one that is differentiated: it keeps one batch only. Compute"
                            + " one loss, go backward and call trainer.step() before the next, or"
                            + " build the layer without optFusedLoss");
        }
        scale = above;
    }

    /**
     * Returns how many classes come before the label of each row.
     *
     * @param features the features
     * @param labels the labels
     * @return the counts, int64 [rows]
     */
    public NDArray countBefore(NDArray features, NDArray labels) {
        return function.evaluation().countBefore(features, weightValue, biasValue, labels);
    }

    /**
     * Computes the loss of features that are not trained on. A gradient that no step has used stays
     * as it is.
     *
     * @param features the features
     * @param labels the labels
     * @param options the options of the loss
     * @return the loss, a scalar
     */
    public NDArray lossOnly(NDArray features, NDArray labels, LossOptions options) {
        return function.evaluation().loss(features, weightValue, biasValue, labels, options);
    }

    /**
     * Returns the best classes of all ranks for each row.
     *
     * @param features the features
     * @param k how many are wanted
     * @param withProbabilities whether their probabilities are wanted too
     * @return the best classes
     */
    public TopClasses topK(NDArray features, int k, boolean withProbabilities) {
        return function.evaluation().topK(features, weightValue, biasValue, k, withProbabilities);
    }

    /**
     * Returns the rank's slice of the logits after all.
     *
     * @param features the features
     * @return the logits, [x1, ..., xn, classes/p]
     */
    public NDArray logits(NDArray features) {
        return function.evaluation().logits(features, weightValue, biasValue);
    }

    /**
     * Returns how often the weight has been updated. Features are of use until the next time.
     *
     * @return the number of updates
     */
    public long getUpdates() {
        return updates;
    }

    /**
     * Returns whether a backward pass has come whose gradient no step has used.
     *
     * @return whether there is a gradient
     */
    public boolean hasGradient() {
        return scale != null;
    }

    /** Sets the gradient to zero, if there is one. */
    public void zeroGradient() {
        if (scale != null) {
            scale = 0f;
        }
    }

    /**
     * Returns whether a step is over a part of the classes, and leaves the others alone.
     *
     * @return whether classes are drawn
     */
    public boolean isSampled() {
        return function.isSampled();
    }

    /** Notes that the weight has been updated by a gradient of zero, as there was none. */
    public void updatedWithoutGradient() {
        updates++;
    }

    /**
     * Updates the weight, and uses the gradient up.
     *
     * @param begun the update of this step, or {@code null} if the weight is frozen
     * @param withBias whether the gradient of the bias is wanted
     * @return the gradient of the bias, valid until the next step, or {@code null}
     */
    public NDArray update(WeightUpdate begun, boolean withBias) {
        if (withBias && biasGradient == null) {
            biasGradient = biasValue.zerosLike();
            biasGradient.detach();
        }
        NDArray target = withBias ? biasGradient : null;
        function.update(weightValue, biasValue, target, begun, scale);
        scale = null;
        updates++;
        return target;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        function.close();
        if (biasGradient != null) {
            biasGradient.close();
        }
    }
}
