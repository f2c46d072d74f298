package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Parameter;

import io.djltp.head.AddedGradient;
import io.djltp.head.FusedCrossEntropy;
import io.djltp.layout.ForwardPass;
import io.djltp.rank.ParticipantStep;
import io.djltp.update.WeightUpdate;

import java.util.Map;
import java.util.WeakHashMap;

/**
 * The gradients of a fused head's weight and bias, and the steps that use them up. What a gradient
 * is made of is kept for one loss; where a step has several, the gradients of those before are an
 * {@link AccumulatedGradient}, which the update of the last one adds.
 *
 * <p>As under DJL's trainer, a parameter gets a gradient if it is trained in the forward and in the
 * backward pass, and a step uses the gradients of what is not frozen then. Others wait.
 */
final class HeadGradients implements AutoCloseable {

    private final Parameter weight;
    private final Parameter bias; // or null
    private final FusedCrossEntropy function;
    private final OtherUse otherUse; // or null
    private final Map<ForwardPass, HeadParts> trained = new WeakHashMap<>(); // in these passes
    private final AccumulatedGradient accumulated = new AccumulatedGradient();
    private LastLoss last = new LastLoss(HeadParts.NONE);
    private NDArray biasGradient;

    HeadGradients(Parameter weight, Parameter bias, FusedCrossEntropy function, OtherUse otherUse) {
        this.weight = weight;
        this.bias = bias;
        this.function = function;
        this.otherUse = otherUse;
    }

    private HeadParts trainedNow() {
        return HeadParts.trained(weight, bias);
    }

    /** Notes what is trained in a forward pass. */
    void beginPass(ForwardPass pass) {
        trained.put(pass, trainedNow());
    }

    /**
     * Returns the next loss, which takes the place of what the gradient of the last one is made of.
     *
     * @throws IllegalStateException if there is such a gradient, of classes that were drawn for it
     */
    LastLoss next(ForwardPass pass, NDArray weightValue, NDArray biasValue) {
        if (!last.parts().isEmpty()) {
            if (function.isSampled()) {
                throw new IllegalStateException(
                        "A head that draws classes keeps the gradient of one batch, of the classes"
                                + " that it has drawn for it: call trainer.step() after each"
                                + " backward pass, or build it without optSampleShare to accumulate"
                                + " the gradients of several batches");
            }
            accumulated.add(function, weightValue, biasValue, last);
        }
        last = new LastLoss(trained.getOrDefault(pass, HeadParts.NONE));
        return last;
    }

    /** Lets the leaves of the other use follow what was frozen and thawed meanwhile. */
    void beginBackward() {
        if (otherUse != null) {
            otherUse.setTrained(weight.requiresGradient());
        }
    }

    /** Notes the backward pass of a loss, and what the loss is multiplied with in it. */
    void begin(LastLoss loss, float above) {
        if (loss != last) {
            throw new IllegalStateException(
                    "Another loss of the same fused head has been computed since"
                            + " the one that is differentiated: it keeps one batch only. Compute"
                            + " one loss, go backward and call trainer.step() before the next, or"
                            + " build it with optFusedLoss(false)");
        }
        loss.begin(above, trainedNow());
    }

    /** Forgets the gradients of what is trained. */
    void zero() {
        last.drop(trainedNow());
        accumulated.drop(trainedNow());
        if (otherUse != null && weight.requiresGradient()) {
            otherUse.zeroGradient();
        }
    }

    /** Multiplies the gradients, and returns whether they are finite. */
    boolean unscale(float factor) {
        boolean finite = accumulated.unscale(factor);
        finite &= otherUse == null || otherUse.unscale(factor);
        return finite & last.unscale(factor);
    }

    /** Makes a step, and returns whether a parameter was updated. */
    boolean step(ParticipantStep step) {
        WeightUpdate ofWeight = step.getUpdate(weight);
        WeightUpdate ofBias = bias == null ? null : step.getUpdate(bias);
        HeadParts updated = new HeadParts(ofWeight != null, ofBias != null);
        try (NDManager scope = step.getValue(weight).getManager().newSubManager()) {
            if (!last.parts().without(updated).isEmpty() && !function.isSampled()) {
                accumulate(step); // some of it has to wait
            }
            AddedGradient added = added(step, scope);
            HeadParts ofLast = last.parts().and(updated);
            NDArray gradient = useLast(step, ofLast, ofWeight, added);
            boolean apart = ofWeight != null && !ofLast.weight() && !function.isSampled();
            if (apart) {
                ofWeight.run(step.getValue(weight), sum(step, added, scope));
            } else if (ofWeight == null && added.places().length > 0) {
                accumulated.add(step.getValue(weight), added.ofRows());
            }
            if (ofBias != null) {
                ofBias.run(step.getValue(bias), sum(gradient, accumulated.ofBias()));
            }
            return apart || ofLast.weight() || ofBias != null;
        } finally {
            accumulated.drop(updated);
        }
    }

    private void accumulate(ParticipantStep step) {
        NDArray biasValue = bias == null ? null : step.getValue(bias);
        accumulated.add(function, step.getValue(weight), biasValue, last);
        last = new LastLoss(HeadParts.NONE);
    }

    /**
     * Uses the last loss up: before anything else changes what its logits were computed with.
     *
     * @return its gradient of the bias, or {@code null} if that is not to be updated by it
     */
    private NDArray useLast(
            ParticipantStep step, HeadParts parts, WeightUpdate ofWeight, AddedGradient added) {
        if (!last.isDifferentiated()) {
            return null;
        }
        NDArray gradient = parts.bias() ? biasGradient(step) : null;
        function.update(
                step.getValue(weight),
                bias == null ? null : step.getValue(bias),
                gradient,
                parts.weight() ? ofWeight : null,
                last.scale(),
                parts.weight() ? added : null);
        last = new LastLoss(HeadParts.NONE);
        return gradient;
    }

    private NDArray biasGradient(ParticipantStep step) {
        if (biasGradient == null) {
            biasGradient = step.getValue(bias).zerosLike();
            biasGradient.detach();
        }
        return biasGradient;
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

    private static NDArray sum(NDArray last, NDArray before) {
        if (last == null || before == null) {
            return last == null ? before : last;
        }
        return last.addi(before);
    }

    /** Frees the memory. */
    @Override
    public void close() {
        accumulated.close();
        if (biasGradient != null) {
            biasGradient.close();
        }
    }
}
