package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;

/** The checkpoints of a run: writes them in the background, and removes old ones. */
final class RunSaves implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RunSaves.class);

    private final RunFolder folder;
    private final int keep;
    private final TrainingState state;
    private PendingSave last;
    private boolean failed; // a rank or another process
    private long newest = -1; // the step of the last save that was begun, or resumed from
    private CompletableFuture<Void> pruned = CompletableFuture.completedFuture(null);
    private volatile Throwable failure;

    /** Opens the folder. All processes call it. */
    RunSaves(Path path, int keep, ParallelTrainer trainer) throws IOException {
        this.keep = keep;
        folder = new RunFolder(path, trainer);
        state = new TrainingState(trainer);
        trainer.getState().addBeforeChange(() -> failed = trainer.getRanks().isOver());
    }

    RunFolder folder() {
        return folder;
    }

    TrainingState state() {
        return state;
    }

    /** Notes that there is a checkpoint of a step. */
    void setNewest(long step) {
        newest = step;
    }

    Throwable failure() {
        return failure;
    }

    /** Begins to write a checkpoint, if there is none of this step. */
    void save(long step, JsonObject values) {
        if (step == newest) {
            return;
        }
        newest = step;
        last = state.save(folder.get(), values);
        pruned = last.toFuture().handle(this::end); // in the writing thread
    }

    /** What follows a save: where it has failed, that is logged by now. */
    private Void end(Long step, Throwable why) {
        failure = why;
        if (why == null && folder.isFirst()) {
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
        return last == null ? newest >= 0 : last.await();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (failed) {
            return; // the parts of a process that is lost do not come; the process ends, and its
            // lock
        }
        state.close();
        pruned.join();
        try {
            folder.close();
        } catch (IOException e) {
            logger.warn("The folder of the checkpoints is not given back: {}", e.getMessage());
        }
    }
}
