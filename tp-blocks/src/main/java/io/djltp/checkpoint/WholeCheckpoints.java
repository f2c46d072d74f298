package io.djltp.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;

import java.io.IOException;
import java.util.List;
import java.util.OptionalLong;

/**
 * Says from which checkpoint a training can go on when one is damaged. It never does so by itself:
 * the steps between would be lost without a word.
 */
final class WholeCheckpoints {

    private WholeCheckpoints() {}

    /**
     * Adds to the error of a checkpoint what can be done.
     *
     * @param folder the folder
     * @param step the step of the checkpoint that cannot be used
     * @param error why not
     * @return the error to throw
     */
    static CheckpointException explain(
            CheckpointFolder folder, long step, CheckpointException error) throws IOException {
        OptionalLong older = newestBefore(folder, step);
        String remedy =
                older.isPresent()
                        ? String.format(
                                "Of step %d there is a whole one: optResumeFrom(%<d), which is"
                                        + " --resume-from %<d of tp, goes on from it and puts newer"
                                        + " ones aside",
                                older.getAsLong())
                        : "No older one in " + folder.getPath() + " is whole";
        return new CheckpointException(error.getMessage() + ". " + remedy, error);
    }

    /** Returns the newest one before a step of which every byte is as it was written. */
    private static OptionalLong newestBefore(CheckpointFolder folder, long step)
            throws IOException {
        List<Long> steps = folder.getSteps();
        for (int i = steps.size() - 1; i >= 0; i--) {
            if (steps.get(i) < step && isWhole(folder, steps.get(i))) {
                return OptionalLong.of(steps.get(i));
            }
        }
        return OptionalLong.empty();
    }

    private static boolean isWhole(CheckpointFolder folder, long step) {
        try (Checkpoint checkpoint = folder.openStep(step)) {
            return checkpoint.verify().isEmpty();
        } catch (IOException e) {
            return false;
        }
    }
}
