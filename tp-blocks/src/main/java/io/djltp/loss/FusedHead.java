package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.head.FusedCrossEntropy;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.layout.DeferredHead;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.StepParticipant;
import io.djltp.torch.Autograd;

import java.util.List;
import java.util.Map;

/**
 * A rank's last layer whose logits are never computed as a whole: its loss, and the update of its
 * weight, are made from the features that it gets.
 *
 * <p>The weight has no gradient. What one is made of is kept from the loss to the trainer's step,
 * as {@link HeadGradients} says.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FusedHead implements StepParticipant, DeferredHead {

    private final Parameter weight;
    private final Parameter bias;
    private final FusedCrossEntropy function;
    private final OtherUse otherUse; // or null
    private final HeadGradients gradients;
    private NDArray weightValue;
    private NDArray biasValue;
    private long losses;
    private long updates;

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
        gradients = new HeadGradients(weight, bias, function, otherUse);
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
     * Begins a forward pass: notes what is trained in it.
     *
     * @param pass the pass
     * @param weightShard the rank's shard of the weight
     * @param biasShard that of the bias, or {@code null}
     */
    public void begin(ForwardPass pass, NDArray weightShard, NDArray biasShard) {
        weightValue = weightShard;
        biasValue = biasShard;
        gradients.beginPass(pass);
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
     * @param context the rank, in the pass that the features are of
     * @return the loss as a part of the graph, a scalar
     * @throws IllegalStateException if there is a gradient that no step has used, of classes that
     *     were drawn for it
     */
    public NDArray evaluate(
            NDArray features, NDArray labels, LossOptions options, ParallelContext context) {
        LastLoss loss = gradients.next(context.getPass(), weightValue, biasValue);
        losses++;
        FusedCrossEntropy.Result result =
                function.evaluate(features, weightValue, biasValue, labels, options);
        try (NDArray value = result.value();
                NDArray gradient = result.gradient();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            return context.getGradientKeeper()
                    .scalar(
                            features,
                            value,
                            gradient,
                            above -> gradients.begin(loss, (float) above));
        }
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

    /** {@inheritDoc} */
    @Override
    public void beginBackward() {
        gradients.beginBackward();
    }

    /** {@inheritDoc} */
    @Override
    public void zeroGradient() {
        gradients.zero();
    }

    /**
     * {@inheritDoc}
     *
     * <p>The gradient of the last batch is one of finite logits: only its factor is to be looked
     * at.
     */
    @Override
    public boolean unscale(float factor) {
        return gradients.unscale(factor);
    }

    /**
     * {@inheritDoc}
     *
     * <p>Updates the weight while it computes its gradient, a chunk of the classes at a time. A
     * step that draws classes leaves the others alone, and forgets its gradient if the weight has
     * been frozen since the backward pass.
     */
    @Override
    public void step(ParticipantStep step) {
        if (gradients.step(step)) {
            updates++;
        }
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
        gradients.close();
        if (otherUse != null) {
            otherUse.close();
        }
    }
}
