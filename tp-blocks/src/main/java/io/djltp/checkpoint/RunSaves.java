package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** The checkpoints of a run: writes them in the background, and removes old ones. */
final class RunSaves implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RunSaves.class);

    private static final String VALUES = "training"; // among those of a checkpoint
    private static final String OPTIONS = "options";

    private final RunFolder folder;
    private final RunOptions options;
    private final int keep;
    private final TrainingState state;
    private PendingSave last;
    private boolean closed;
    private boolean lost; // another process
    private long newest = -1; // the step of the last save that was begun, or resumed from
    private CompletableFuture<Void> ended = CompletableFuture.completedFuture(null);
    private volatile Throwable failure;

    /** Reads what belongs to a training beside the state of its trainer. */
    @FunctionalInterface
    interface Reader<T> {
        T read(SavedMembers saved) throws CheckpointException;
    }

    /** Opens the folder. All processes call it. */
    RunSaves(RunSettings settings, ParallelTrainer trainer) throws IOException {
        options = settings.options();
        keep = settings.keep();
        folder = new RunFolder(settings.path(), trainer);
        state = new TrainingState(trainer);
        RankPool ranks = trainer.getRanks();
        trainer.getState().addBeforeChange(() -> lost = ranks.isOver() && ranks.isDistributed());
    }

    /**
     * Checks that there are no checkpoints, not to mix two runs in one folder; else this is closed.
     * All processes call it.
     *
     * @throws IllegalStateException if there are some
     */
    void checkEmpty() throws IOException {
        try {
            long step = folder.find(null);
            if (step >= 0) {
                throw new IllegalStateException(
                        folder.get().getPath()
                                + " has checkpoints of another run, the newest of step "
                                + step
                                + ": resume(trainer) goes on from it; or choose another folder");
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
     * @param reader reads and compares what else belongs to the training, before anything is
     *     changed
     * @return what it has read, or {@code null} if there is no checkpoint
     * @throws CheckpointException if it is damaged: with the newest older one that is whole
     */
    <T> T restore(Long named, Reader<T> reader) throws IOException {
        long step = folder.find(named);
        if (step < 0) {
            return null;
        }
        try (Checkpoint checkpoint = folder.open(step)) {
            T saved = state.restore(checkpoint, () -> reader.read(check(checkpoint)));
            newest = step;
            putAside(step);
            return saved;
        } catch (CheckpointException e) {
            throw WholeCheckpoints.explain(folder.get(), step, e);
        }
    }

    private SavedMembers check(Checkpoint checkpoint) throws CheckpointException {
        SavedMembers values = SavedMembers.of(checkpoint);
        if (!values.has(VALUES)) {
            throw new IllegalArgumentException(
                    checkpoint.getPath() + " was not written by a CheckpointListener");
        }
        SavedMembers saved = values.object(VALUES);
        options.check(saved.object(OPTIONS), checkpoint.getStep());
        return saved;
    }

    /** Makes room for the checkpoints of the steps to come, now that all processes have read. */
    private void putAside(long step) throws IOException {
        List<Long> newer = folder.putAside(step);
        if (!newer.isEmpty()) {
            logger.warn(
                    "The training goes on from step {}: its checkpoints of steps {} are put aside",
                    step,
                    newer);
        }
    }

    /**
     * Checks that checkpoints can be written, before one is due.
     *
     * @throws IllegalStateException if this is closed
     */
    void checkOpen() {
        if (closed) {
            throw new IllegalStateException(
                    "No checkpoint is taken, because the CheckpointListener of "
                            + folder.get().getPath()
                            + " is closed: close it, or the trainer that closes it, after the last"
                            + " step. To train on, resume(trainer) with a new trainer and listener");
        }
    }

    Throwable failure() {
        return failure;
    }

    /** Begins to write a checkpoint, unless there is one of this step that has not failed. */
    void save(long step, SavedProgress progress) {
        if (step == newest) {
            ended.join(); // then all processes know whether it has failed
            if (last == null || last.getFailure() == null) {
                return;
            }
        }
        JsonObject values = progress.values();
        values.add(OPTIONS, options.save());
        JsonObject all = new JsonObject();
        all.add(VALUES, values);
        PendingSave save = state.save(folder.get(), all, progress.failure());
        newest = step;
        last = save;
        ended = save.toFuture().handle((done, why) -> end(save)); // in the writing thread
    }

    /** What follows a save: where it has failed, that is logged by now. */
    private Void end(PendingSave save) {
        failure = save.getFailure();
        if (failure == null && folder.isFirst()) {
            try {
                folder.get().prune(keep);
            } catch (IOException e) {
                logger.warn("Old checkpoints cannot be removed: {}", e.getMessage());
            }
        }
        return null;
    }

    /** Waits for the last save; returns whether it is complete. */
    boolean await() {
        ended.join();
        return last == null ? newest >= 0 : last.await();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        closed = true;
        if (!lost) {
            state.close();
            ended.join();
        } // else the parts of the lost process do not come, and the writing thread gives up later
        try {
            folder.close();
        } catch (IOException e) {
            logger.warn(
                    "{} still has the name of this run in it ({}). The next run can use it all"
                            + " the same",
                    folder.get().getPath(),
                    e.toString());
        }
    }
}
