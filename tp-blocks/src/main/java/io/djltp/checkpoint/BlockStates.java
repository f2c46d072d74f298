package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.parameters.StatefulBlock;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** What blocks keep that is the same on all ranks, such as the number of dropout's masks. */
final class BlockStates {

    private final Map<String, StatefulBlock> blocks;

    BlockStates(Block network) {
        blocks = StatefulBlock.of(network);
    }

    /**
     * Returns the tensors.
     *
     * @param manager the manager of the copies
     * @param ranks the number of ranks of this process
     * @param values gets the names of the arrays of each block
     */
    List<TakenState.Tensor> tensors(NDManager manager, int ranks, JsonObject values) {
        List<TakenState.Tensor> tensors = new ArrayList<>();
        blocks.forEach(
                (path, block) -> {
                    JsonArray names = new JsonArray();
                    new TreeMap<>(block.getTrainingState(manager))
                            .forEach(
                                    (name, array) -> {
                                        names.add(name);
                                        tensors.add(tensor(path + "/" + name, array, ranks));
                                    });
                    values.add(path, names);
                });
        return tensors;
    }

    private static TakenState.Tensor tensor(String name, NDArray array, int ranks) {
        CutTensor tensor = CutTensor.whole(name, array.getDataType(), array.getShape());
        return new TakenState.Tensor(tensor, Collections.nCopies(ranks, array));
    }

    /**
     * Reads the names of the arrays of each block.
     *
     * @param checkpoint the checkpoint, which has their tensors
     * @param saved what {@link #tensors} has noted
     */
    static Map<String, List<String>> read(Checkpoint checkpoint, SavedMembers saved)
            throws CheckpointException {
        Map<String, List<String>> blocks = new TreeMap<>();
        for (String path : saved.names()) {
            List<String> names = saved.texts(path);
            for (String name : names) {
                if (!checkpoint.getTensors().containsKey(path + "/" + name)) {
                    throw saved.wrong(path, "has " + name + ", of which there is no tensor");
                }
            }
            blocks.put(path, names);
        }
        return blocks;
    }

    /**
     * Puts the states of a checkpoint into the blocks.
     *
     * @param checkpoint the checkpoint
     * @param saved what {@link #read} has returned
     */
    void restore(Checkpoint checkpoint, Map<String, List<String>> saved) throws IOException {
        try (NDManager scope = NDManager.newBaseManager()) {
            for (Map.Entry<String, StatefulBlock> block : blocks.entrySet()) {
                Map<String, NDArray> state = new TreeMap<>();
                for (String name : saved.getOrDefault(block.getKey(), List.of())) {
                    state.put(name, checkpoint.read(block.getKey() + "/" + name, scope));
                }
                block.getValue().setTrainingState(state);
            }
        }
    }
}
