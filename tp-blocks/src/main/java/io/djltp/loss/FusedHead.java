package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.head.AddedGradient;
import io.djltp.head.FusedCrossEntropy;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.layout.DeferredHead;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.StepParticipant;
import io.djltp.torch.Autograd;
import io.djltp.torch.GradientKeeper;
import io.djltp.update.WeightUpdate;

import java.util.List;
import java.util.Map;

/**
 * A rank's last layer whose logits are never computed as a whole: its loss, and the update of its
 * weight, are made from the features that it gets.
 *
 * <p>The weight has no gradient. What one is made of is kept from the loss to the trainer's step,
 * for one batch; where a step has several, the gradients of those before are an {@link
 * AccumulatedGradient}, which the update of the last one adds.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FusedHead implements StepParticipant, DeferredHead {

    private final Parameter weight;
    private final Parameter bias;
    private final FusedCrossEntropy function;
    private final AccumulatedGradient accumulated = new AccumulatedGradient();
    private final OtherUse otherUse; // or null
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
     * @param otherUse another use of the weight, which is closed with this, or {@code null}
     */
    public FusedHead(
            Parameter weight, Parameter bias, FusedCrossEntropy function, OtherUse otherUse) {
        this.otherUse = otherUse;
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
        return layout != null && layout.head() instanceof FusedHead head ? head : null;
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

    /** {@return the other use of the weight, or {@code null}} */
    public OtherUse getOtherUse() {
        return otherUse;
    }

    /** {@inheritDoc} */
    @Override
    public List<Parameter> getParameters() {
        return bias == null ? List.of(weight) : List.of(weight, bias);
    }

    /** {@inheritDoc} */
    @Override
    public Shape getShape() {
        return weight.getShape();
    }

    /**
     * Computes the loss.
     *
     * @param features the features, which require a gradient
     * @param labels the labels
     * @param options the options of the loss
     * @param keeper where the gradient of the features is left
     * @return the loss as a part of the graph, a scalar
     * @throws IllegalStateException if there is a gradient that no step has used, of classes that
     *     were drawn for it
     */
    public NDArray evaluate(
            NDArray features, NDArray labels, LossOptions options, GradientKeeper keeper) {
        if (hasGradient() && scale != 0) {
            accumulate();
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

    /** The next loss takes the place of what the gradient of the last one is made of. */
    private void accumulate() {
        if (function.isSampled()) {
            throw new IllegalStateException(
                    "A head that draws classes keeps the gradient of one batch, of the classes that"
                            + " it has drawn for it: call trainer.step() after each backward pass,"
                            + " or build it without optSampleShare to accumulate the gradients of"
                            + " several batches");
        }
        boolean frozen = !weight.requiresGradient();
        accumulated.add(function, weightValue, biasValue, frozen, scale);
    }

    private void begin(long number, float above) {
        if (number != losses) {
            throw new IllegalStateException(
                    "Another loss of the same fused head has been computed since"
                            + " the one that is differentiated: it keeps one batch only. Compute"
                            + " one loss, go backward and call trainer.step() before the next, or"
                            + " build it with optFusedLoss(false)");
        }
        scale = above;
    }

    /**
     * {@return how many classes come before the label of each row, int64 [rows]}
     *
     * @param features the features
     * @param labels the labels
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

    /** {@inheritDoc} */
    @Override
    public NDArray logits(NDArray features) {
        return function.evaluation().logits(features, weightValue, biasValue);
    }

    /** {@inheritDoc} */
    @Override
    public long getUpdates() {
        return updates;
    }

    /** {@inheritDoc} */
    @Override
    public long getLosses() {
        return losses;
    }

    /** Returns whether a backward pass has come whose gradient no step has used. */
    private boolean hasGradient() {
        return scale != null;
    }

    /** {@inheritDoc} */
    @Override
    public void zeroGradient() {
        if (scale != null) {
            scale = 0f;
        }
        accumulated.clear();
        if (otherUse != null) {
            otherUse.zeroGradient();
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>The gradient of the last batch is one of finite logits: only its factor is to be looked
     * at.
     */
    @Override
    public boolean unscale(float factor) {
        boolean finite = accumulated.unscale(factor);
        finite &= otherUse == null || otherUse.unscale(factor);
        if (scale != null) {
            scale *= factor;
            finite &= Float.isFinite(scale);
        }
        return finite;
    }

    /**
     * {@inheritDoc}
     *
     * <p>Updates the weight while it computes its gradient, a chunk of the classes at a time. A
     * step that draws classes leaves the others alone.
     */
    @Override
    public void step(ParticipantStep step) {
        WeightUpdate ofWeight = step.getUpdate(weight);
        WeightUpdate ofBias = bias == null ? null : step.getUpdate(bias);
        try (NDManager scope = step.getValue(weight).getManager().newSubManager()) {
            NDArray gradient = accumulated.ofBias();
            AddedGradient added = added(step, scope);
            if (hasGradient()) {
                NDArray last = ofBias == null ? null : biasGradient();
                function.update(weightValue, biasValue, last, ofWeight, scale, added);
                gradient = last == null || gradient == null ? last : last.addi(gradient);
                scale = null;
                updates++;
            } else if (ofWeight != null && !function.isSampled()) {
                ofWeight.run(step.getValue(weight), sum(step, added, scope));
                updates++;
            }
            if (ofBias != null) {
                ofBias.run(step.getValue(bias), gradient);
            }
        } finally {
            accumulated.clear();
        }
    }

    /** Returns what the gradient of the weight has beside that of the last batch. */
    private AddedGradient added(ParticipantStep step, NDManager scope) {
        AddedGradient other = otherUse == null ? null : otherUse.take(step, scope);
        NDArray whole = accumulated.ofWeight();
        return other == null
                ? new AddedGradient(whole, new long[0], null)
                : new AddedGradient(whole, other.places(), other.rows());
    }

    /** Returns the gradient of a step in which no loss of the head is differentiated last. */
    private NDArray sum(ParticipantStep step, AddedGradient added, NDManager scope) {
        if (added.isEmpty()) {
            return null;
        }
        NDArray sum = scope.zeros(step.getValue(weight).getShape(), DataType.FLOAT32);
        added.addTo(sum);
        return sum.toType(step.getValue(weight).getDataType(), false);
    }

    private NDArray biasGradient() {
        if (biasGradient == null) {
            biasGradient = biasValue.zerosLike();
            biasGradient.detach();
        }
        return biasGradient;
    }

    /** {@inheritDoc} As {@link FusedHeadState} says. */
    @Override
    public Map<String, NDArray> getState(NDManager manager) {
        return FusedHeadState.get(function, manager);
    }

    /** {@inheritDoc} */
    @Override
    public Map<String, StateCut> getStateCuts() {
        return FusedHeadState.CUTS;
    }

    /** {@inheritDoc} */
    @Override
    public void setState(Map<String, NDArray> state) {
        FusedHeadState.set(function, weight.getShape(), state);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        function.close();
        accumulated.close();
        if (otherUse != null) {
            otherUse.close();
        }
        if (biasGradient != null) {
            biasGradient.close();
        }
    }
}
