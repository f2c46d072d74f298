package io.djltp.checkpoint;

import com.google.gson.JsonElement;

/**
 * Something that belongs to a training beside the network and the optimizer, and goes on where a
 * checkpoint found it: a listener that counts, a sampler with a state, the losses of a report.
 *
 * <p>A listener of the trainer that implements this is saved and restored under the name of its
 * class; anything else under the name that {@link CheckpointListener.Builder#optState} gives it.
 */
public interface Resumable {

    /**
     * Returns the state after a step.
     *
     * @return the state, of which nothing changes when training goes on
     */
    JsonElement saveState();

    /**
     * Goes on from a state.
     *
     * @param state what {@link #saveState()} returned in the run before
     */
    void restoreState(JsonElement state);
}
