package io.djltp.checkpoint;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.training.ParallelTrainer;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/**
 * The folder of checkpoints as all processes of a job use it: that of rank 0 opens it first and
 * says which checkpoint is the newest, and the others follow or hear that it could not.
 */
final class RunFolder implements Closeable {

    private static final int NONE = -1;
    private static final int FAILED = -2;

    private final ParallelTrainer trainer;
    private final boolean first; // whether this is the process of rank 0
    private final CheckpointFolder folder;

    /**
     * Opens the folder. All processes call it.
     *
     * @throws IOException if it cannot be used, on all processes
     */
    RunFolder(Path path, ParallelTrainer trainer) throws IOException {
        this.trainer = trainer;
        first = trainer.getRanks().getContext(0).getRank() == 0;
        CheckpointFolder opened = null;
        IOException failure = null;
        if (first) {
            try {
                opened = CheckpointFolder.open(path);
            } catch (IOException e) {
                failure = e;
            }
        }
        follow(failure, failure == null ? NONE : FAILED, path);
        folder = first ? opened : CheckpointFolder.join(path);
    }

    CheckpointFolder get() {
        return folder;
    }

    boolean isFirst() {
        return first;
    }

    /**
     * Returns the step of the newest checkpoint, or of the one that the user names. All processes
     * call it.
     *
     * @param named the step that the user names, or null
     * @return the step, or -1 if there is none
     */
    long find(Long named) throws IOException {
        long step = NONE;
        IOException failure = null;
        if (first) {
            try (Checkpoint checkpoint =
                    named == null ? orNull(folder.openNewest()) : folder.openStep(named)) {
                step = checkpoint == null ? NONE : checkpoint.getStep();
            } catch (CheckpointException e) {
                failure = explain(named, e);
                step = FAILED;
            } catch (IOException e) {
                failure = e;
                step = FAILED;
            }
        }
        return follow(failure, step, folder.getPath());
    }

    /** Says what can be done about a checkpoint that is there and cannot be used. */
    private IOException explain(Long named, CheckpointException error) {
        try {
            List<Long> steps = folder.getSteps();
            long step = named == null ? steps.get(steps.size() - 1) : named;
            return steps.contains(step) ? WholeCheckpoints.explain(folder, step, error) : error;
        } catch (IOException e) {
            error.addSuppressed(e);
            return error;
        }
    }

    private static Checkpoint orNull(Optional<Checkpoint> checkpoint) {
        return checkpoint.orElse(null);
    }

    private long follow(IOException failure, long value, Path path) throws IOException {
        long agreed = (long) trainer.fromRankZero(value);
        if (failure != null) {
            throw failure;
        }
        if (agreed == FAILED) {
            throw new CheckpointException(
                    "The process of rank 0 cannot use the checkpoints in "
                            + path
                            + ": its error says why");
        }
        return agreed;
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        folder.close();
    }
}
