package io.djltp.training;

import ai.djl.nn.Parameter;

import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.Errors;
import io.djltp.internal.events.FlightEvents;
import io.djltp.internal.events.StepEvent;
import io.djltp.internal.gradient.GradientGroups;
import io.djltp.internal.gradient.RankUpdate;
import io.djltp.internal.optimizer.LearningRates;
import io.djltp.internal.optimizer.LossScale;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.torch.Autograd;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/** The steps of a training: the forward passes of one, their backward passes, and the update. */
@SuppressWarnings("try") // a phase is used by being open
final class TrainingSteps implements AutoCloseable {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final LearningRates learningRates;
    private final GradientGroups gradientGroups;
    private final RankUpdate updates;
    private final LossScale lossScale;
    private final OneCaller caller = new OneCaller();
    private final PendingPasses passes = new PendingPasses();
    private final Map<Parameter, LearningRates.Update> ahead = new HashMap<>(); // of this step
    private long count;
    private boolean hasGradients;
    private @Nullable StepEvent event; // null: no step has begun, or nobody records it

    TrainingSteps(
            RankPool ranks,
            ParallelParameters parameters,
            OptimizerSettings optimizer,
            ParallelConfig config) {
        this.ranks = ranks;
        this.parameters = parameters;
        learningRates = new LearningRates(optimizer, name -> parameters.byName(name) != null);
        gradientGroups = new GradientGroups(parameters);
        lossScale = new LossScale(config.getLossScaling());
        updates = new RankUpdate(parameters, gradientGroups, optimizer, ranks, config);
        for (int i = 0; i < ranks.size(); i++) {
            ParallelContext context = ranks.getContext(i);
            context.setRowSparse(optimizer.isRowSparse());
            context.setStepAhead(() -> updates.ahead(context, nextRates(parameters.getTrained())));
        }
    }

    /**
     * Begins a call of the trainer.
     *
     * @throws IllegalStateException if another thread is in one
     */
    OneCaller.Call begin(String what) {
        return caller.begin(what);
    }

    /** Returns whether another thread is in a call of the trainer. */
    boolean isCalledElsewhere() {
        return caller.isElsewhere();
    }

    /** Returns the passes of this step. */
    PendingPasses getPasses() {
        return passes;
    }

    /**
     * Checks that a backward pass makes sense.
     *
     * @throws IllegalStateException if nothing is trained
     */
    void checkTrained() {
        Errors.checkState(
                !parameters.getTrained().isEmpty(),
                "All parameters are frozen: there is nothing to differentiate."
                        + " block.freezeParameters(false) thaws them");
    }

    /**
     * Runs the backward passes of outputs that the coordinator's backward pass has reached.
     *
     * @param reached the outputs
     */
    void backward(List<ParallelOutput> reached) {
        parameters.getStores().forEach(RankParameterStore::followFrozen); // all of them
        reached.forEach(output -> output.backward(gradientGroups));
        passes.forget(false);
        hasGradients = true;
    }

    /** Forgets the gradients that are there. */
    void zeroGradients() {
        ranks.runAll(
                context -> {
                    RankParameterStore store = parameters.getStore(context);
                    for (Parameter parameter : parameters.getTrained()) {
                        Autograd.dropGradient(store.getHeld(parameter));
                    }
                    context.getParticipants().forEach(StepParticipant::zeroGradient);
                });
    }

    /** Records the step, if this begins one. */
    void beginEvent() {
        if (FlightEvents.areUsed() && !isOpen()) {
            event = new StepEvent(ranks.getContext(0).getSize());
        }
    }

    /** Ends the record of the step. */
    void endEvent() {
        if (event != null) {
            event.setStep(count);
            event.commit();
            event = null;
        }
    }

    /**
     * Updates all parameters on all ranks, or none if the loss is scaled and a gradient is not
     * finite.
     *
     * @param beforeChange is done when nothing can be refused any more
     * @throws IllegalStateException if no gradients were computed since the last step
     * @throws ArithmeticException if no loss scale makes the gradients finite
     */
    void update(Runnable beforeChange) {
        Errors.checkState(
                hasGradients,
                "There are no gradients: call backward(loss) of trainer.newGradientCollector()"
                        + " before step()");
        List<Parameter> trained = parameters.getTrained();
        gradientGroups.share(ranks);
        updates.checkNorm(ranks.getContext(0), new HashSet<>(trained));
        boolean finite = !lossScale.isUsed() || unscale();
        if (finite) {
            change(trained, beforeChange);
        } else {
            onRanks(updates::drop);
        }
        passes.forget(true);
        gradientGroups.clear();
        hasGradients = false;
        count++;
        if (lossScale.isUsed()) {
            lossScale.update(finite, count);
        }
    }

    private void change(List<Parameter> trained, Runnable beforeChange) {
        Map<Parameter, LearningRates.Update> rates = nextRates(trained);
        beforeChange.run();
        ahead.clear();
        onRanks(
                context -> {
                    if (lossScale.isUsed()) {
                        updates.finish(context, rates);
                    } else {
                        updates.run(context, rates);
                    }
                });
    }

    /** Returns the rates of the next step, which trackers are asked for once. */
    private synchronized Map<Parameter, LearningRates.Update> nextRates(List<Parameter> trained) {
        List<Parameter> missing = trained.stream().filter(p -> !ahead.containsKey(p)).toList();
        if (!missing.isEmpty()) {
            ahead.putAll(learningRates.next(missing, parameters::nameOf));
        }
        Map<Parameter, LearningRates.Update> rates = new LinkedHashMap<>();
        trained.forEach(parameter -> rates.put(parameter, ahead.get(parameter)));
        return rates;
    }

    private void onRanks(Consumer<ParallelContext> task) {
        ranks.runAll(
                context -> {
                    try (ParallelContext.Phase phase = context.begin(Direction.STEP)) {
                        task.accept(context);
                    }
                    context.getGradientKeeper().close(); // of losses that were never used
                });
    }

    /** Takes the scale of the loss from the gradients, and returns whether all are finite. */
    private boolean unscale() {
        Set<Parameter> trained = new LinkedHashSet<>(parameters.getTrained());
        float scale = lossScale.get();
        return ranks.run(
                        context -> {
                            try (ParallelContext.Phase phase = context.begin(Direction.STEP)) {
                                return updates.unscale(context, trained, scale);
                            }
                        })
                .get(0); // they agree
    }

    /** Returns the number of steps done. */
    long count() {
        return count;
    }

    /** Goes on with the number of steps of another training. */
    void setCount(long steps) {
        count = steps;
    }

    /** Returns whether a forward pass has come whose step has not. */
    boolean isOpen() {
        return hasGradients || passes.isOpen();
    }

    /** Returns the norm of all gradients of the last step, or NaN if it is not computed. */
    double getGradientNorm() {
        return updates.getGradientNorm();
    }

    LossScale getLossScale() {
        return lossScale;
    }

    LearningRates getLearningRates() {
        return learningRates;
    }

    OptimizerState getOptimizerState(int rank) {
        return updates.getState(rank);
    }

    /** Frees the state of the optimizer. */
    @Override
    public void close() {
        passes.forget(true);
        updates.close();
    }

    /** The forward passes of a step that were not differentiated yet, and what of them is to be. */
    static final class PendingPasses {

        private final List<ParallelOutput> pending = new ArrayList<>();
        private boolean collecting;

        /** Adds a forward pass that may be differentiated. */
        void add(ParallelOutput output) {
            forget(false);
            pending.add(output);
        }

        /** Forgets all passes, or those for which no backward pass can come any more. */
        void forget(boolean all) {
            for (Iterator<ParallelOutput> it = pending.iterator(); it.hasNext(); ) {
                ParallelOutput output = it.next();
                if (all || !output.isPending()) {
                    output.forget();
                    it.remove();
                }
            }
        }

        /** Returns whether a backward pass may come. */
        boolean isOpen() {
            return pending.stream().anyMatch(ParallelOutput::isPending);
        }

        /**
         * Notes that a gradient collector was opened or closed.
         *
         * @throws IllegalStateException if one is opened while another one is open
         */
        void setCollecting(boolean now) {
            Errors.checkState(
                    !now || !collecting,
                    "A gradient collector of this trainer is open, and as under DJL's own trainer"
                            + " only one can be at a time: close it before the next one is made,"
                            + " with try (GradientCollector collector ="
                            + " trainer.newGradientCollector()) { ... }");
            collecting = now;
        }

        /**
         * Finds the outputs with a loss that the caller's backward pass has reached.
         *
         * @return the outputs
         * @throws IllegalArgumentException if there are none, or one whose graph is not complete
         *     any more, or a gradient of predictions that would be lost; no rank has begun then
         * @throws IllegalStateException if the manager of such a pass was closed; no rank has begun
         *     then
         */
        List<ParallelOutput> findReached() {
            List<ParallelOutput> reached =
                    pending.stream().filter(ParallelOutput::isReached).toList();
            try {
                pending.forEach(ParallelOutput::checkTerms);
                reached.forEach(ParallelOutput::checkBeforeBackward);
            } catch (IllegalArgumentException | IllegalStateException e) {
                reached.forEach(ParallelOutput::drop);
                throw e;
            }
            Errors.check(
                    !reached.isEmpty(),
                    "backward() needs a loss that trainer.getLoss().evaluate(labels,"
                            + " predictions) has computed from predictions of trainer.forward(...),"
                            + " and that was not differentiated before");
            return reached;
        }
    }

    /**
     * The thread that is in a call of a trainer. What is kept from one call to the next is that of
     * one step; another thread may take over between two calls.
     */
    static final class OneCaller {

        private static final Call WITHIN = () -> {}; // another call of the same thread

        private final AtomicReference<@Nullable Thread> caller = new AtomicReference<>();
        private final Call call = () -> caller.set(null);

        /** A call that has begun, or anything else whose end throws no checked exception. */
        @FunctionalInterface
        interface Call extends AutoCloseable {

            /** Ends it. */
            @Override
            void close();
        }

        /** Returns whether another thread is in a call. */
        boolean isElsewhere() {
            Thread other = caller.get();
            return other != null && other != Thread.currentThread();
        }

        /**
         * Begins a call.
         *
         * @param what its name, for the error
         * @return the call, to be closed by this thread
         * @throws IllegalStateException if another thread is in a call, which goes on
         */
        Call begin(String what) {
            Thread self = Thread.currentThread();
            Thread other = caller.compareAndExchange(null, self);
            if (other == null) {
                return call;
            }
            if (other == self) {
                return WITHIN;
            }
            throw new IllegalStateException(
                    ("trainer.%s was called by the thread '%s' while the thread '%s' is in a call of the"
                                    + " same trainer, which goes on: a trainer serves one thread at a"
                                    + " time, and a step would be made of what both do. Give each"
                                    + " thread a trainer and a model of its own, or let them take turns"
                                    + " with a lock that each holds from forward to step")
                            .formatted(what, self.getName(), other.getName()));
        }
    }
}
