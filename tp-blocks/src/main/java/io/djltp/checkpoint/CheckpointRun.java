package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.StateWriter.PendingSave;
import io.djltp.internal.Errors;
import io.djltp.internal.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;

/**
 * The checkpoints of a run in its folder: finds the one to go on from, writes new ones in the
 * background, and removes old ones.
 *
 * <p>The process of rank 0 opens the folder first and says which checkpoint is the newest, and the
 * others follow. If one of them cannot, none does, and each says whose folder it is.
 */
final class CheckpointRun implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(CheckpointRun.class);

    private static final long NONE = -1;
    private static final int HEXADECIMAL = 16;

    private final ParallelTrainer trainer;
    private final Agreement agreement;
    private final boolean first; // whether this is the process of rank 0
    private final CheckpointFolder folder;
    private final int keep;
    private final TrainingState state;
    private @Nullable PendingSave last;
    private boolean closed;
    private boolean resumed;
    private boolean lost; // another process
    private long newest = NONE; // the step of the last save that was begun, or resumed from

    /**
     * Opens the folder. All processes call it.
     *
     * @throws IOException if it cannot be used, or is not one folder, on all processes
     */
    CheckpointRun(Path path, int keep, ParallelTrainer trainer) throws IOException {
        this.trainer = trainer;
        this.keep = keep;
        agreement = new Agreement(trainer.getState());
        RankPool ranks = trainer.getRanks();
        first = ranks.getContext(0).getRank() == 0;
        folder = openFolder(path);
        state = new TrainingState(trainer);
        trainer.getState().addBeforeChange(() -> lost = ranks.isOver() && ranks.isDistributed());
    }

    private CheckpointFolder openFolder(Path path) throws IOException {
        String use = "use the folder of the checkpoints";
        CheckpointFolder opened =
                agreement.run(use, () -> first ? CheckpointFolder.open(path) : null);
        double run = first ? Long.parseLong(opened.getRun(), HEXADECIMAL) : NONE;
        long running = (long) trainer.fromRankZero(run);
        return agreement.run(use, () -> first ? opened : join(path, running));
    }

    private static CheckpointFolder join(Path path, long run) throws IOException {
        CheckpointException why = null;
        try {
            CheckpointFolder joined = CheckpointFolder.join(path);
            if ("%08x".formatted(run).equals(joined.getRun())) {
                return joined;
            }
        } catch (CheckpointException e) { // there is no folder, or no run has opened it
            why = e;
        }
        throw new CheckpointException(
                path.toAbsolutePath().normalize()
                        + " is not the folder that the process of rank 0 has opened: give all"
                        + " processes one folder that they share",
                why);
    }

    /**
     * Checks that there are no checkpoints, not to mix two runs in one folder; else this is closed.
     * All processes call it.
     *
     * @throws IllegalStateException if there are some
     */
    void checkEmpty() throws IOException {
        try {
            long step = find(null);
            if (step >= 0) {
                throw new IllegalStateException(
                        ("%s has checkpoints of another run, the newest of step %s: "
                                        + "resume(trainer) goes on from it; or choose another folder")
                                .formatted(folder.getPath(), step));
            }
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    /**
     * Puts back the state of the newest checkpoint, or of the one that the user names: newer ones
     * are put aside then. All processes call it.
     *
     * @param named the step that the user names, or null
     * @param progress reads and compares what else belongs to the training, before anything is
     *     changed
     * @return what it has read, or {@code null} if there is no checkpoint
     * @throws CheckpointException if it is damaged: with the newest older one that is whole
     */
    TrainingProgress.@Nullable Saved restore(@Nullable Long named, TrainingProgress progress)
            throws IOException {
        long step = find(named);
        if (step < 0) {
            return null;
        }
        try (Checkpoint checkpoint =
                agreement.run("open the checkpoint", () -> folder.openStep(step))) {
            TrainingProgress.Saved saved =
                    state.restore(checkpoint, () -> progress.read(checkpoint, trainer));
            newest = step;
            resumed = true;
            putAside(step);
            return saved;
        } catch (CheckpointException e) {
            throw explain(step, e);
        }
    }

    /**
     * Returns the step of the newest checkpoint, or of the one that the user names; -1 if there is
     * none. All processes call it.
     */
    private long find(@Nullable Long named) throws IOException {
        long step =
                agreement.run(
                        "use its checkpoint",
                        () -> named != null ? named : first ? newestBefore(Long.MAX_VALUE) : NONE);
        return (long) trainer.fromRankZero(step);
    }

    private long newestBefore(long step) throws IOException {
        return folder.getSteps().stream()
                .filter(each -> each < step)
                .max(Long::compare)
                .orElse(NONE);
    }

    /** Makes room for the checkpoints of the steps to come, now that all processes have read. */
    private void putAside(long step) throws IOException {
        List<Long> newer =
                agreement.run(
                        "put newer checkpoints aside",
                        () -> first ? folder.putAside(step) : List.of());
        if (!newer.isEmpty()) {
            logger.warn(
                    "The training goes on from step {}: its checkpoints of steps {} are put aside",
                    step,
                    newer);
        }
    }

    /**
     * Adds to the error of a checkpoint from which one a training can go on. It never does so by
     * itself: the steps between would be lost without a word.
     *
     * @param step the step of the checkpoint that cannot be used
     * @param error why not
     * @return the error to throw
     */
    private CheckpointException explain(long step, CheckpointException error) throws IOException {
        if (!folder.getSteps().contains(step)) {
            return error;
        }
        long older = newestBefore(step);
        while (older >= 0 && !isWhole(older)) {
            older = newestBefore(older);
        }
        String remedy =
                older < 0
                        ? "No older one in " + folder.getPath() + " is whole"
                        : String.format(
                                "Of step %d there is a whole one: optResumeFrom(%<d), which is"
                                        + " --resume-from %<d of tp, goes on from it and puts newer"
                                        + " ones aside",
                                older);
        return new CheckpointException(error.getMessage() + ". " + remedy, error);
    }

    private boolean isWhole(long step) {
        try (Checkpoint checkpoint = folder.openStep(step)) {
            return checkpoint.verify().isEmpty();
        } catch (IOException e) {
            return false;
        }
    }

    /**
     * Checks that checkpoints can be written, before one is due.
     *
     * @throws IllegalStateException if this is closed
     */
    void checkOpen() {
        Errors.checkState(
                !closed,
                "No checkpoint is taken, because the CheckpointListener of %s is closed: close"
                        + " it, or the trainer that closes it, after the last step. To train on,"
                        + " resume(trainer) with a new trainer and listener",
                folder.getPath());
    }

    /** Returns whether the run has gone on from a checkpoint. */
    boolean isResumed() {
        return resumed;
    }

    @Nullable Throwable failure() {
        return state.failure();
    }

    /** Begins to write a checkpoint, unless there is one of this step that has not failed. */
    void save(long step, TrainingProgress.Noted progress) {
        if (step == newest) {
            boolean complete = last == null || last.await();
            if (trainer.fromRankZero(complete ? 1 : 0) > 0) { // which alone knows of all parts
                return;
            }
        }
        JsonObject all = new JsonObject();
        all.add(TrainingProgress.NAME, progress.values());
        last = state.save(folder, keep, all, progress.failure());
        newest = step;
    }

    /** Waits for the last save; returns whether it is complete. */
    boolean await() {
        return last == null ? newest >= 0 : last.await();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        closed = true;
        if (!lost) {
            state.close();
            await();
        } // else the parts of the lost process do not come, and the writing thread gives up later
        try {
            folder.close();
        } catch (IOException e) {
            logger.warn(
                    "{} still has the name of this run in it ({}). The next run can use it all"
                            + " the same",
                    folder.getPath(),
                    e.toString());
        }
    }
}
