package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.head.AddedGradient;
import io.djltp.head.FusedSoftmaxHead;
import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.update.GradientScale;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.layout.DeferredHead;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.rank.ParticipantStep;
import io.djltp.rank.StepParticipant;

import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;

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
    private final FusedSoftmaxHead function;
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
            Parameter weight, Parameter bias, FusedSoftmaxHead function, OtherUse otherUse) {
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
        weightValue = DelegatedArray.unwrap(weightShard);
        biasValue = biasShard == null ? null : DelegatedArray.unwrap(biasShard);
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
        FusedSoftmaxHead.Result result =
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

    /**
     * Another use of the weight of a {@link FusedHead} in the same network, such as an embedding's:
     * the head updates the weight by the gradients of both.
     */
    public interface OtherUse extends AutoCloseable {

        /**
         * Returns the gradient of the backward passes since the last step, of all rows of the
         * batch, and forgets it. All ranks call it in every step.
         *
         * @param step the step
         * @param scope the manager of what is made
         * @return the gradient of some rows, maybe of none
         */
        AddedGradient take(ParticipantStep step, NDManager scope);

        /**
         * Takes the scale of the loss from the gradients of backward passes since the last step.
         *
         * @param factor what they have to be multiplied with
         * @return whether all of this rank are finite
         */
        boolean unscale(float factor);

        /**
         * Sets whether backward passes to come leave a gradient.
         *
         * @param trained whether the weight is trained now
         */
        void setTrained(boolean trained);

        /** Forgets the gradients of backward passes since the last step. */
        void zeroGradient();

        /** Frees the memory. */
        @Override
        void close();
    }

    /**
     * The gradients of a fused head's weight and bias, and the steps that use them up. What a
     * gradient is made of is kept for one loss; where a step has several, the gradients of those
     * before are an {@link AccumulatedGradient}, which the update of the last one adds.
     *
     * <p>As under DJL's trainer, a parameter gets a gradient if it is trained in the forward and in
     * the backward pass, and a step uses the gradients of what is not frozen then. Others wait.
     */
    private static final class HeadGradients implements AutoCloseable {

        private final Parameter weight;
        private final Parameter bias; // or null
        private final FusedSoftmaxHead function;
        private final OtherUse otherUse; // or null
        private final Map<ForwardPass, HeadParts> trained = new WeakHashMap<>(); // in these passes
        private final AccumulatedGradient accumulated = new AccumulatedGradient();
        private LastLoss last = new LastLoss(HeadParts.NONE);
        private NDArray biasGradient;

        HeadGradients(
                Parameter weight, Parameter bias, FusedSoftmaxHead function, OtherUse otherUse) {
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
         * Returns the next loss, which takes the place of what the gradient of the last one is made
         * of.
         *
         * @throws IllegalStateException if there is such a gradient, of classes that were drawn for
         *     it
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

        /**
         * The sum of the gradients of the batches of a step before the last, of a head that keeps
         * what the gradient of one batch is made of; and those of parameters that were frozen when
         * their step came, until they are thawed. It takes as much memory as the rank's shard of
         * the weight in 32 bits, from the second batch of a step on.
         */
        private static final class AccumulatedGradient implements AutoCloseable {

            private NDArray ofWeight; // float32 [classes/p, features], or null before the first
            private NDArray ofBias;
            private NDArray ofLastBias;
            private HeadParts some = HeadParts.NONE;

            /**
             * Adds the gradient of a loss.
             *
             * @param function the function, whose pass this uses up
             * @param weight the rank's shard of the weight
             * @param bias the rank's shard of the bias, or {@code null}
             * @param loss the loss
             */
            void add(FusedSoftmaxHead function, NDArray weight, NDArray bias, LastLoss loss) {
                HeadParts parts = loss.parts();
                if (parts.weight() && ofWeight == null) {
                    ofWeight = zeros(weight);
                }
                if (parts.bias() && ofLastBias == null) {
                    ofLastBias = zeros(bias);
                }
                function.accumulate(
                        weight,
                        bias,
                        parts.bias() ? ofLastBias : null,
                        parts.weight() ? ofWeight : null,
                        !some.weight(),
                        loss.scale());
                if (parts.bias() && some.bias()) {
                    ofBias.addi(ofLastBias);
                } else if (parts.bias()) {
                    close(ofBias);
                    ofBias = ofLastBias.duplicate();
                    ofBias.detach();
                }
                some = some.or(parts);
            }

            /**
             * Adds a gradient of the weight.
             *
             * @param weight the rank's shard of the weight
             * @param added the gradient
             */
            void add(NDArray weight, AddedGradient added) {
                if (!some.weight()) {
                    close(ofWeight);
                    ofWeight = zeros(weight);
                }
                added.addTo(ofWeight);
                some = new HeadParts(true, some.bias());
            }

            private static NDArray zeros(NDArray like) {
                NDArray zeros = like.getManager().zeros(like.getShape(), DataType.FLOAT32);
                zeros.detach();
                return zeros;
            }

            /** Returns the sum of the weight's gradients, or {@code null} if there is none. */
            NDArray ofWeight() {
                return some.weight() ? ofWeight : null;
            }

            /** Returns the sum of the bias's gradients, or {@code null} if there is none. */
            NDArray ofBias() {
                return some.bias() ? ofBias : null;
            }

            /** Multiplies the sums, and returns whether they are finite. */
            boolean unscale(float factor) {
                return (!some.weight() || GradientScale.takeFrom(ofWeight, factor))
                        & (!some.bias() || GradientScale.takeFrom(ofBias, factor));
            }

            /** Forgets sums, and keeps their memory for the next step. */
            void drop(HeadParts dropped) {
                some = some.without(dropped);
            }

            /** Frees the memory. */
            @Override
            public void close() {
                close(ofWeight);
                close(ofBias);
                close(ofLastBias);
            }

            private static void close(NDArray array) {
                if (array != null) {
                    array.close();
                }
            }
        }
    }
}
