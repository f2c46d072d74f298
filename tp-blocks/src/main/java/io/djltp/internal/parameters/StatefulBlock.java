package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A block that keeps something from one training step to the next that is no parameter, such as the
 * number of masks that it has drawn. It is the same on all ranks; what differs between them belongs
 * to a {@link io.djltp.internal.rank.StepParticipant}.
 */
public interface StatefulBlock extends Block {

    /**
     * Returns what the next step depends on.
     *
     * @param manager the manager that the arrays are attached to
     * @return copies by name, the same in all processes; none if there is nothing yet
     */
    Map<String, NDArray> getTrainingState(NDManager manager);

    /**
     * Goes on with the state of another training of the same block, on any number of ranks.
     *
     * @param state what {@link #getTrainingState} has returned, which is copied; empty for none
     * @throws IllegalArgumentException if it has other names or shapes
     */
    void setTrainingState(Map<String, NDArray> state);

    /**
     * Finds the blocks of a network that have a state, those in fields included.
     *
     * @param network the network
     * @return the blocks by their path
     */
    static Map<String, StatefulBlock> of(Block network) {
        Map<String, StatefulBlock> found = new LinkedHashMap<>();
        BlockWalk.of(
                network,
                (block, path, certain) -> {
                    if (block instanceof StatefulBlock stateful) {
                        found.put(path, stateful);
                    }
                });
        return found;
    }
}
