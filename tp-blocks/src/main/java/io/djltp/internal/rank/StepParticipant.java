package io.djltp.internal.rank;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.util.Collection;
import java.util.Map;

/**
 * What a block keeps on a rank between a forward pass and the step: a head that updates its weight
 * itself, a table of which few rows are used, a buffer of gradients.
 *
 * <p>A block asks for it in its forward pass, {@link ParallelContext#getParticipants}, with a key
 * of its own, mostly its parameter. From then on the trainer takes it along: to {@code
 * zeroGradients}, to each step, and to the close. An instance belongs to one rank and is used by
 * its thread; all ranks have the same participants, made in the same order, so that collective
 * operations in {@link #step} meet.
 *
 * <p>The parameters of a participant are its own affair: they may not be a part of the graph of a
 * loss, and nobody else updates them. Where a leaf of the graph stands for one, such as the sum of
 * some rows of a table, {@code context.getPass().getTrace().addLeaf(leaf, parameter)} says so, and
 * {@link ParticipantStep#getGradientGroup} then knows over which ranks the leaf's gradient is
 * summed.
 */
public interface StepParticipant extends AutoCloseable {

    /**
     * Returns the parameters whose gradient and update are the participant's own affair.
     *
     * @return the parameters, maybe none; always the same
     */
    Collection<Parameter> getParameters();

    /**
     * Begins a backward pass. What is frozen now gets no gradient by it, even if it is thawed
     * before the step: where a leaf of the graph stands for a parameter, it has to follow ({@code
     * leaf.setRequiresGradient(parameter.requiresGradient())}). By default, nothing is done.
     */
    default void beginBackward() {
        // nothing follows
    }

    /** Forgets the gradients of backward passes since the last step, of what is not frozen. */
    void zeroGradient();

    /**
     * Takes the scale of the loss from the gradients of backward passes since the last step, before
     * a {@link #step}, with {@link ParallelConfig.Builder#optLossScaling}. If a gradient of any
     * rank is not finite, {@link #zeroGradient} comes instead of the step.
     *
     * @param factor what the gradients have to be multiplied with
     * @return whether all gradients of this rank are finite
     * @throws UnsupportedOperationException by default, if it has parameters: their gradients would
     *     keep the scale
     */
    default boolean unscale(float factor) {
        if (!getParameters().isEmpty()) {
            throw new UnsupportedOperationException(
                    getClass().getName()
                            + " updates parameters itself and does not know of loss scaling:"
                            + " override StepParticipant.unscale, or leave out optLossScaling");
        }
        return true;
    }

    /**
     * Takes part in a step: updates what it owns, and uses the gradients up. Called at every step,
     * with or without a gradient. That of a parameter that is frozen now waits until it is thawed,
     * as under DJL's trainer.
     *
     * @param step the step
     */
    void step(ParticipantStep step);

    /**
     * Returns what has to be saved beside the parameters to continue as if nothing had been: all
     * that a step depends on and that does not follow from anything else, in the last bits too.
     *
     * <p>The names, and the shapes but for {@link #getStateCuts}, are the same on all ranks. A
     * checkpoint is written while training goes on: what changes in a step alone may be a view,
     * what changes before one (in a forward pass) is a copy.
     *
     * @param manager the manager that the arrays are attached to
     * @return views or copies by name; none by default
     */
    default Map<String, NDArray> getState(NDManager manager) {
        return Map.of();
    }

    /**
     * Returns which arrays of the state are cut over the ranks, and how. An array that is not named
     * is the same on all ranks, and for any number of them.
     *
     * @return the cuts by the names of the arrays; none by default
     */
    default Map<String, StateCut> getStateCuts() {
        return Map.of();
    }

    /**
     * Says how an array is cut.
     *
     * @param parameter the parameter as which it is cut, and where that is not, it is not either;
     *     {@code null} for what each place of the tensor group has of its own
     * @param axis the axis of the array along which a rank has the ranges that it has of the
     *     parameter's axis
     */
    record StateCut(@Nullable Parameter parameter, int axis) {

        /**
         * Says that each place of the tensor group has an array of its own, [1, x1, ..., xn]. On as
         * many places {@link #setState} gets it as it was; else it gets those of all places before,
         * [places, x1, ..., xn], and makes of them what it can.
         *
         * @return the cut
         */
        public static StateCut ofPlace() {
            return new StateCut(null, 0);
        }
    }

    /**
     * Sets the state to what {@link #getState} has returned, maybe of a training on another number
     * of ranks: of what is cut, the arrays have the ranges of this rank.
     *
     * @param state the arrays by name, which are copied
     * @throws IllegalArgumentException if there is no state of one of the names, or its shape is
     *     another
     */
    default void setState(Map<String, NDArray> state) {
        if (!state.isEmpty()) {
            throw new IllegalArgumentException(
                    getClass().getSimpleName() + " has no state, and is given " + state.keySet());
        }
    }

    /** Frees the memory. */
    @Override
    void close();
}
