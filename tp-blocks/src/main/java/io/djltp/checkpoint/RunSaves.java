package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** The checkpoints of a run: writes them in the background, and removes old ones. */
final class RunSaves implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RunSaves.class);

    private final RunFolder folder;
    private final int keep;
    private final TrainingState state;
    private final ExecutorService watcher =
            Executors.newSingleThreadExecutor(
                    task -> {
                        Thread thread = new Thread(task, "checkpoint-watcher");
                        thread.setDaemon(true);
                        return thread;
                    });
    private PendingSave last;
    private long newest = -1; // the step of the last save that was begun, or resumed from
    private volatile Throwable failure;

    /** Opens the folder. All processes call it. */
    RunSaves(Path path, int keep, ParallelTrainer trainer) throws IOException {
        this.keep = keep;
        folder = new RunFolder(path, trainer);
        state = new TrainingState(trainer);
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
        PendingSave save = state.save(folder.get(), values);
        last = save;
        watcher.execute(() -> watch(save));
    }

    private void watch(PendingSave save) {
        if (!save.await()) {
            failure = save.getFailure();
            logger.warn(
                    "There is no checkpoint of step {}, and training goes on: {}",
                    save.getStep(),
                    failure.getMessage());
            return;
        }
        failure = null;
        if (folder.isFirst()) {
            try {
                folder.get().prune(keep);
            } catch (IOException e) {
                logger.warn("Old checkpoints cannot be removed: {}", e.getMessage());
            }
        }
    }

    /** Waits for the last save; returns whether it is complete. */
    boolean await() {
        return last == null ? newest >= 0 : last.await();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        state.close();
        watcher.shutdown();
        try {
            if (!watcher.awaitTermination(1, TimeUnit.MINUTES)) {
                logger.warn("Old checkpoints are still being removed");
            }
            folder.close();
        } catch (IOException e) {
            logger.warn("The folder of the checkpoints is not given back: {}", e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
