package io.djltp.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.rank.StepParticipant.StateCut;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * What a checkpoint says of a trainer, beside its tensors: read and checked as a whole before any
 * of it is put back.
 *
 * @param numbers the numbers of the trainer
 * @param participants how the arrays of each participant are cut, by their names; null where whole
 * @param blocks the names of the arrays of each block
 * @param generator the state of this process's generator, or {@code null}
 */
record SavedState(
        TrainerValues.Saved numbers,
        Map<String, Map<String, StateCut>> participants,
        Map<String, List<String>> blocks,
        byte[] generator) {

    /**
     * Checks that each tensor of a checkpoint is somebody's: else a name is missing.
     *
     * @param checkpoint the checkpoint
     * @param saved the trainer's values in it
     * @param others the names of the tensors of parameters and of the optimizer
     */
    void checkTensors(Checkpoint checkpoint, SavedMembers saved, Set<String> others)
            throws CheckpointException {
        Set<String> left = new TreeSet<>(checkpoint.getTensors().keySet());
        left.removeAll(others);
        participants.forEach((of, arrays) -> remove(left, of, arrays.keySet()));
        blocks.forEach((of, arrays) -> remove(left, of, arrays));
        if (!left.isEmpty()) {
            throw saved.wrong(
                    "blocks",
                    "or participants do not have " + left + ", of which there are tensors");
        }
    }

    private static void remove(Set<String> left, String of, Iterable<String> arrays) {
        arrays.forEach(array -> left.remove(of + "/" + array));
    }
}
