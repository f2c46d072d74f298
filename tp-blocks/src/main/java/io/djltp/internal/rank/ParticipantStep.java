package io.djltp.internal.rank;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.internal.update.WeightUpdate;

import org.jspecify.annotations.Nullable;

/** A step as a {@link StepParticipant} sees it: what the rank has of each parameter. */
public interface ParticipantStep {

    /**
     * Returns the rank's value of a parameter.
     *
     * @param parameter the parameter
     * @return the rank's shard or replica
     */
    NDArray getValue(Parameter parameter);

    /**
     * Returns the update of a parameter by the trainer's optimizer, with its state, begun with the
     * learning rate of this step.
     *
     * @param parameter the parameter
     * @return the update, or {@code null} if the parameter is frozen
     */
    @Nullable WeightUpdate getUpdate(Parameter parameter);

    /**
     * Returns the group over which the rank's gradient of a parameter is summed. It follows from
     * where in the network the parameter, or the leaf of the graph that stands for it, was used.
     *
     * @param parameter the parameter
     * @return the group, or {@code null} if the rank has the whole gradient of its value
     */
    @Nullable Communicator getGradientGroup(Parameter parameter);

    /**
     * Returns the name of a parameter in the network, for errors.
     *
     * @param parameter the parameter
     * @return the name
     */
    String nameOf(Parameter parameter);
}
