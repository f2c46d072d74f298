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
 * says which checkpoint is the newest, and the others follow. If one of them cannot, none does, and
 * each says whose folder it is.
 */
final class RunFolder implements Closeable {

    private static final long NONE = -1;
    private static final int HEXADECIMAL = 16;

    private final ParallelTrainer trainer;
    private final Agreement agreement;
    private final boolean first; // whether this is the process of rank 0
    private CheckpointFolder folder;

    /**
     * Opens the folder. All processes call it.
     *
     * @throws IOException if it cannot be used, or is not one folder, on all processes
     */
    RunFolder(Path path, ParallelTrainer trainer) throws IOException {
        this.trainer = trainer;
        agreement = new Agreement(trainer.getState());
        first = trainer.getRanks().getContext(0).getRank() == 0;
        String use = "use the folder of the checkpoints";
        try {
            agreement.run(use, () -> folder = first ? CheckpointFolder.open(path) : null);
            double run = first ? Long.parseLong(folder.getRun(), HEXADECIMAL) : NONE;
            long running = (long) trainer.fromRankZero(run);
            agreement.run(use, () -> folder = first ? folder : join(path, running));
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    private static CheckpointFolder join(Path path, long run) throws IOException {
        CheckpointFolder joined = null;
        CheckpointException why = null;
        try {
            joined = CheckpointFolder.join(path);
        } catch (CheckpointException e) { // there is no folder, or no run has opened it
            why = e;
        }
        if (joined == null || !joined.getRun().equals("%08x".formatted(run))) {
            throw new CheckpointException(
                    path.toAbsolutePath().normalize()
                            + " is not the folder that the process of rank 0 has opened: give all"
                            + " processes one folder that they share",
                    why);
        }
        return joined;
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
        long step = agreement.get("use its checkpoint", () -> first ? findHere(named) : NONE);
        return (long) trainer.fromRankZero(step);
    }

    private long findHere(Long named) throws IOException {
        try (Checkpoint checkpoint =
                named == null ? orNull(folder.openNewest()) : folder.openStep(named)) {
            return checkpoint == null ? NONE : checkpoint.getStep();
        } catch (CheckpointException e) {
            throw explain(named, e);
        }
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

    /** Opens a checkpoint. All processes call it. */
    Checkpoint open(long step) throws IOException {
        Checkpoint[] opened = new Checkpoint[1];
        try {
            agreement.run("open the checkpoint", () -> opened[0] = folder.openStep(step));
            return opened[0];
        } catch (IOException | RuntimeException e) {
            if (opened[0] != null) {
                opened[0].close();
            }
            throw e;
        }
    }

    /**
     * Puts the checkpoints of later steps aside. All processes call it.
     *
     * @return the steps of those that were, in the process of rank 0
     */
    List<Long> putAside(long step) throws IOException {
        return agreement.get(
                "put newer checkpoints aside", () -> first ? folder.putAside(step) : List.of());
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        if (folder != null) {
            folder.close();
        }
    }
}
