package io.djltp.internal.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.head.LossOptions;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.head.AddedGradient;
import io.djltp.internal.head.ChunkedHead;
import io.djltp.internal.head.OneVsAll;
import io.djltp.internal.layout.DeferredHead;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.ParticipantStep;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.SquareSum;
import io.djltp.internal.update.WeightUpdate;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.WeakHashMap;

/**
 * A rank's last layer whose logits are never computed as a whole: its loss, and the update of its
 * weight, are made from the features that it gets.
 *
 * <p>The weight has no gradient. What one is made of is kept from the loss to the trainer's step,
 * for one loss; where a step has several, the gradients of those before are an {@link
 * AccumulatedGradient}, which the update of the last one adds.
 *
 * <p>As under DJL's trainer, a parameter gets a gradient if it is trained in the forward and in the
 * backward pass, and a step uses the gradients of what is not frozen then. Others wait.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FusedHead implements StepParticipant, DeferredHead {

    private static final String STEPS = "steps";
    private static final String PLAN = "plan";
    private static final int NUMBERS = 3; // of a plan

    private final Parameter weight;
    private final @Nullable Parameter bias;
    private final ChunkedHead function;
    private final @Nullable OtherUse otherUse;
    private final Map<ForwardPass, Parts> trained = new WeakHashMap<>(); // in these passes
    private final AccumulatedGradient accumulated = new AccumulatedGradient();
    private LastLoss last = new LastLoss(Parts.NONE);
    private boolean updated; // with the loss, since the last step
    private @Nullable NDArray biasGradient;
    private @Nullable NDArray weightValue;
    private @Nullable NDArray biasValue;
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
            Parameter weight,
            @Nullable Parameter bias,
            ChunkedHead function,
            @Nullable OtherUse otherUse) {
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
    public static @Nullable FusedHead of(@Nullable ParallelContext context, NDArray array) {
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
    public void begin(ForwardPass pass, NDArray weightShard, @Nullable NDArray biasShard) {
        weightValue = DelegatedArray.unwrap(weightShard);
        biasValue = biasShard == null ? null : DelegatedArray.unwrap(biasShard);
        trained.put(pass, trainedNow());
    }

    private NDArray weightValue() {
        if (weightValue == null) {
            throw new IllegalStateException("The head has not begun a forward pass");
        }
        return weightValue;
    }

    /** {@return the other use of the weight, or {@code null}} */
    public @Nullable OtherUse getOtherUse() {
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
        LastLoss loss = next(context.getPass());
        losses++;
        return toGraph(
                features,
                loss,
                function.evaluate(features, weightValue(), biasValue, labels, options),
                context);
    }

    /**
     * Computes a one-vs-all loss, and updates the weight in the same pass if the head does so.
     *
     * @param features the features, which require a gradient
     * @param labels the labels
     * @param rule the loss
     * @param context the rank, in the pass that the features are of
     * @return the loss as a part of the graph, a scalar
     * @throws IllegalStateException as {@link #evaluate}, or if a loss has updated the weight since
     *     the last step
     */
    public NDArray evaluate(
            NDArray features, NDArray labels, OneVsAll rule, ParallelContext context) {
        ChunkedHead.InLoss now = null;
        if (function.isInLoss()) {
            Errors.checkState(
                    !updated,
                    "A head with optUpdateInLoss has updated its weight with a loss of this step:"
                            + " call trainer.step() before the next loss, or leave the option out"
                            + " to accumulate the gradients of several batches");
            now = inLoss(context);
        }
        LastLoss loss = next(context.getPass());
        losses++;
        ChunkedHead.Result result =
                function.evaluateOneVsAll(features, weightValue(), biasValue, labels, rule, now);
        if (now != null) {
            updated = true;
            updates++;
            loss.useWeight();
        }
        return toGraph(features, loss, result, context);
    }

    /** Begins the update that is made with the loss. */
    private ChunkedHead.InLoss inLoss(ParallelContext context) {
        ParticipantStep step = context.getStepAhead();
        Parts parts = trained.getOrDefault(context.getPass(), Parts.NONE);
        NDArray ofBias = bias != null && biasValue != null ? biasGradient(biasValue) : null;
        return new ChunkedHead.InLoss(
                parts.weight() ? step.getUpdate(weight) : null, parts.bias() ? ofBias : null);
    }

    private NDArray toGraph(
            NDArray features, LastLoss loss, ChunkedHead.Result result, ParallelContext context) {
        try (NDArray value = result.value();
                NDArray gradient = result.gradient();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            return context.getGradientKeeper()
                    .scalar(features, value, gradient, above -> begin(loss, above));
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
        return function.evaluation().loss(features, weightValue(), biasValue, labels, options);
    }

    /**
     * The same of a one-vs-all loss.
     *
     * @param features the features
     * @param labels the labels
     * @param rule the loss
     * @return the loss, a scalar
     */
    public NDArray lossOnly(NDArray features, NDArray labels, OneVsAll rule) {
        return function.evaluation().loss(features, weightValue(), biasValue, labels, rule);
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
        return function.evaluation().logits(features, weightValue(), biasValue);
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
    public boolean isUpdatedInLoss() {
        return updated;
    }

    /** {@inheritDoc} */
    @Override
    public void beginBackward() {
        if (otherUse != null) { // its leaves follow what was frozen and thawed meanwhile
            otherUse.setTrained(weight.requiresGradient());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void zeroGradient() {
        updated = false;
        last.drop(trainedNow());
        accumulated.drop(trainedNow());
        if (otherUse != null && weight.requiresGradient()) {
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
        finite &= last.unscale(factor);
        return finite && (!last.isDifferentiated() || function.hasFiniteGradient());
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
        if (updated) {
            finishStep(step);
            return;
        }
        WeightUpdate ofWeight = step.getUpdate(weight);
        WeightUpdate ofBias = bias == null ? null : step.getUpdate(bias);
        Parts updated = new Parts(ofWeight != null, ofBias != null);
        try (NDManager scope = step.getValue(weight).getManager().newSubManager()) {
            if (!last.parts().without(updated).isEmpty() && !function.isSampled()) {
                accumulate(step); // some of it has to wait
            }
            AddedGradient added = added(step, scope);
            Parts ofLast = last.parts().and(updated);
            NDArray gradient = useLast(step, ofLast, ofWeight, added);
            boolean apart = ofWeight != null && !ofLast.weight() && !function.isSampled();
            if (ofWeight != null && apart) {
                ofWeight.run(step.getValue(weight), sum(step, added, scope));
            } else if (ofWeight == null && added.places().length > 0) {
                accumulated.add(step.getValue(weight), added.ofRows());
            }
            if (bias != null && ofBias != null) {
                ofBias.run(step.getValue(bias), sum(gradient, accumulated.ofBias()));
            }
            if (apart || ofLast.weight() || ofBias != null) {
                updates++;
            }
        } finally {
            accumulated.drop(updated);
        }
    }

    /** Ends a step whose loss has updated the weight. */
    private void finishStep(ParticipantStep step) {
        updated = false;
        WeightUpdate ofBias = bias == null ? null : step.getUpdate(bias);
        NDArray gradient = last.parts().bias() ? biasGradient : null;
        last = new LastLoss(Parts.NONE);
        if (bias != null && ofBias != null) {
            ofBias.run(step.getValue(bias), gradient);
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>The state of a fused head as arrays, int64. A head that draws classes goes on with that of
     * one that does not, and the other way round: its next step draws as if all before had drawn.
     *
     * <ul>
     *   <li>{@code steps} [1]: the number of updates, by which classes are drawn
     *   <li>{@code plan} [1, 3]: what the roundings of passes follow from, of each place of the
     *       tensor group: {@link ChunkedHead.State#guarded()}, {@link ChunkedHead.State#rows()} and
     *       {@link ChunkedHead.State#evaluationRows()}
     * </ul>
     */
    @Override
    public Map<String, NDArray> getState(NDManager manager) {
        ChunkedHead.State state = function.getState();
        long[] numbers = {state.guarded() ? 1 : 0, state.rows(), state.evaluationRows()};
        NDArray plan = manager.create(numbers, new Shape(1, NUMBERS));
        return Map.of(PLAN, plan, STEPS, manager.create(new long[] {state.steps()}));
    }

    /** {@inheritDoc} */
    @Override
    public Map<String, StateCut> getStateCuts() {
        return Map.of(PLAN, StateCut.ofPlace());
    }

    /** {@inheritDoc} */
    @Override
    public void setState(Map<String, NDArray> state) {
        NDArray steps = state.get(STEPS);
        NDArray plan = state.get(PLAN);
        int known = (steps == null ? 0 : 1) + (plan == null ? 0 : 1);
        if (state.size() != known || steps != null && steps.size() != 1) {
            Map<String, Shape> found = new TreeMap<>();
            state.forEach((name, array) -> found.put(name, array.getShape()));
            throw Errors.argument(
                    "The state of a head with the weight %s is \"plan\" and \"steps\", one number, not"
                            + " %s",
                    weight.getShape(), found);
        }
        long[] numbers = plan == null ? new long[NUMBERS] : plan.toLongArray();
        boolean large = false;
        for (int i = 0; i < numbers.length; i += NUMBERS) {
            large |= numbers[i] != 0;
        }
        boolean same = numbers.length == NUMBERS;
        function.setState(
                new ChunkedHead.State(
                        steps == null ? 0 : steps.toLongArray()[0],
                        large,
                        same ? numbers[1] : 0,
                        same ? numbers[2] : 0));
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        function.close();
        accumulated.close();
        if (biasGradient != null) {
            biasGradient.close();
        }
        if (otherUse != null) {
            otherUse.close();
        }
    }

    private Parts trainedNow() {
        return new Parts(weight.requiresGradient(), bias != null && bias.requiresGradient());
    }

    /**
     * Returns the next loss, which takes the place of what the gradient of the last one is made of.
     *
     * @throws IllegalStateException if there is such a gradient, of classes that were drawn for it
     */
    private LastLoss next(ForwardPass pass) {
        if (!last.parts().isEmpty()) {
            Errors.checkState(
                    !function.isSampled(),
                    "A head that draws classes keeps the gradient of one batch, of the classes"
                            + " that it has drawn for it: call trainer.step() after each backward"
                            + " pass, or build it without optSampleShare to accumulate the"
                            + " gradients of several batches");
            accumulated.add(function, weightValue(), biasValue, last);
        }
        last = new LastLoss(trained.getOrDefault(pass, Parts.NONE));
        return last;
    }

    /** Notes the backward pass of a loss, and what the loss is multiplied with in it. */
    private void begin(LastLoss loss, TensorView above) {
        Errors.checkState(
                loss == last,
                "Another loss of the same fused head has been computed since the one that is"
                        + " differentiated: it keeps one batch only. Compute one loss, go"
                        + " backward and call trainer.step() before the next, or build it with"
                        + " optFusedLoss(false)");
        double factor = updated ? HostReads.number(above) : 1;
        Errors.checkState(
                factor == 1,
                "A head with optUpdateInLoss has updated its weight by its loss times 1, and the"
                        + " backward pass multiplies it with %s: leave the option out, or change"
                        + " the learning rate",
                (float) factor);
        function.scale(above);
        loss.begin(trainedNow());
    }

    private void accumulate(ParticipantStep step) {
        NDArray biasValue = bias == null ? null : step.getValue(bias);
        accumulated.add(function, step.getValue(weight), biasValue, last);
        last = new LastLoss(Parts.NONE);
    }

    /**
     * Uses the last loss up: before anything else changes what its logits were computed with.
     *
     * @return its gradient of the bias, or {@code null} if that is not to be updated by it
     */
    private @Nullable NDArray useLast(
            ParticipantStep step,
            Parts parts,
            @Nullable WeightUpdate ofWeight,
            AddedGradient added) {
        if (!last.isDifferentiated()) {
            return null;
        }
        NDArray value = bias == null ? null : step.getValue(bias);
        NDArray gradient = value != null && parts.bias() ? biasGradient(value) : null;
        function.update(
                step.getValue(weight),
                value,
                gradient,
                parts.weight() ? ofWeight : null,
                last.scale(),
                parts.weight() ? added : null);
        last = new LastLoss(Parts.NONE);
        return gradient;
    }

    private NDArray biasGradient(NDArray value) {
        if (biasGradient == null) {
            biasGradient = value.zerosLike();
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
    private @Nullable NDArray sum(ParticipantStep step, AddedGradient added, NDManager scope) {
        if (added.isEmpty()) {
            return null;
        }
        NDArray sum = scope.zeros(step.getValue(weight).getShape(), DataType.FLOAT32);
        added.addTo(sum);
        return sum.toType(step.getValue(weight).getDataType(), false);
    }

    private static @Nullable NDArray sum(@Nullable NDArray last, @Nullable NDArray before) {
        if (last == null || before == null) {
            return last == null ? before : last;
        }
        return last.addi(before);
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
     * Which parameters of a head something is about, such as those that are trained.
     *
     * @param weight whether it is about the weight
     * @param bias whether it is about the bias
     */
    private record Parts(boolean weight, boolean bias) {

        static final Parts NONE = new Parts(false, false);

        Parts and(Parts others) {
            return new Parts(weight && others.weight, bias && others.bias);
        }

        Parts or(Parts others) {
            return new Parts(weight || others.weight, bias || others.bias);
        }

        Parts without(Parts others) {
            return new Parts(weight && !others.weight, bias && !others.bias);
        }

        boolean isEmpty() {
            return !weight && !bias;
        }
    }

    /**
     * The last loss of a head, and what its backward pass has said. As in PyTorch, a parameter gets
     * a gradient if it is trained in the forward pass and in the backward pass; what is frozen or
     * thawed afterwards decides which gradients a step uses, not which are there.
     */
    private static final class LastLoss {

        private Parts parts; // that get a gradient, or have it
        private @Nullable Float scale; // of the gradient since the backward pass, null before it

        /**
         * Notes a loss.
         *
         * @param trained what was trained in the forward pass
         */
        LastLoss(Parts trained) {
            parts = trained;
        }

        /**
         * Notes the backward pass.
         *
         * @param trained what is trained now
         */
        void begin(Parts trained) {
            scale = 1f;
            parts = parts.and(trained);
        }

        /** Notes that the weight has been updated by it. */
        void useWeight() {
            parts = new Parts(false, parts.bias());
        }

        /** Returns whether the backward pass has come. */
        boolean isDifferentiated() {
            return scale != null;
        }

        /** Returns which parameters have a gradient of it. */
        Parts parts() {
            return scale == null ? Parts.NONE : parts;
        }

        /** Returns what the gradient is to be multiplied with. */
        float scale() {
            if (scale == null) {
                throw new IllegalStateException("The backward pass of the loss has not come");
            }
            return scale;
        }

        /** Drops gradients. */
        void drop(Parts dropped) {
            if (scale != null) {
                parts = parts.without(dropped);
            }
        }

        /** Multiplies the gradients, and returns whether the factor is finite. */
        boolean unscale(float factor) {
            if (scale == null) {
                return true;
            }
            scale *= factor;
            return Float.isFinite(scale);
        }
    }

    /**
     * The sum of the gradients of the batches of a step before the last, of a head that keeps what
     * the gradient of one batch is made of; and those of parameters that were frozen when their
     * step came, until they are thawed. It takes as much memory as the rank's shard of the weight
     * in 32 bits, from the second batch of a step on.
     */
    private static final class AccumulatedGradient implements AutoCloseable {

        private @Nullable NDArray
                ofWeight; // float32 [classes/p, features], or null before the first
        private @Nullable NDArray ofBias;
        private @Nullable NDArray ofLastBias;
        private Parts some = Parts.NONE;

        /**
         * Adds the gradient of a loss.
         *
         * @param function the function, whose pass this uses up
         * @param weight the rank's shard of the weight
         * @param bias the rank's shard of the bias, or {@code null}
         * @param loss the loss
         */
        void add(ChunkedHead function, NDArray weight, @Nullable NDArray bias, LastLoss loss) {
            Parts parts = loss.parts();
            if (parts.weight() && ofWeight == null) {
                ofWeight = zeros(weight);
            }
            if (parts.bias() && bias != null && ofLastBias == null) {
                ofLastBias = zeros(bias);
            }
            NDArray lastBias = parts.bias() ? ofLastBias : null;
            NDArray sum = ofBias();
            function.accumulate(
                    weight,
                    bias,
                    lastBias,
                    parts.weight() ? ofWeight : null,
                    !some.weight(),
                    loss.scale());
            if (lastBias != null && sum != null) {
                sum.addi(lastBias);
            } else if (lastBias != null) {
                close(ofBias);
                ofBias = lastBias.duplicate();
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
            NDArray sum = ofWeight();
            if (sum == null) {
                close(ofWeight);
                sum = zeros(weight);
                ofWeight = sum;
            }
            added.addTo(sum);
            some = new Parts(true, some.bias());
        }

        private static NDArray zeros(NDArray like) {
            NDArray zeros = like.getManager().zeros(like.getShape(), DataType.FLOAT32);
            zeros.detach();
            return zeros;
        }

        /** Returns the sum of the weight's gradients, or {@code null} if there is none. */
        @Nullable NDArray ofWeight() {
            return some.weight() ? ofWeight : null;
        }

        /** Returns the sum of the bias's gradients, or {@code null} if there is none. */
        @Nullable NDArray ofBias() {
            return some.bias() ? ofBias : null;
        }

        /** Multiplies the sums, and returns whether they are finite. */
        boolean unscale(float factor) {
            NDArray weight = ofWeight();
            NDArray bias = ofBias();
            return (weight == null || SquareSum.unscale(weight, factor))
                    & (bias == null || SquareSum.unscale(bias, factor));
        }

        /** Forgets sums, and keeps their memory for the next step. */
        void drop(Parts dropped) {
            some = some.without(dropped);
        }

        /** Frees the memory. */
        @Override
        public void close() {
            close(ofWeight);
            close(ofBias);
            close(ofLastBias);
        }

        private static void close(@Nullable NDArray array) {
            if (array != null) {
                array.close();
            }
        }
    }
}
