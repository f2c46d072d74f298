package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.checkpoint.store.CheckpointWriter;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Writes states in a thread of its own, one after the other. Before weights are changed, {@link
 * #awaitRead()} waits until that thread has read them.
 */
final class StateWriter implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(StateWriter.class);

    private final Duration limit;
    private final ExecutorService thread =
            Executors.newSingleThreadExecutor(
                    task -> {
                        Thread writing = new Thread(task, "checkpoint");
                        writing.setDaemon(true); // a disk that hangs does not keep the process
                        return writing;
                    });
    private PendingSave last;

    /**
     * Creates a writer.
     *
     * @param limit how long a step waits for the weights to be written
     */
    StateWriter(Duration limit) {
        this.limit = limit;
    }

    /**
     * Begins to write a state, which this closes, whatever happens.
     *
     * @param state the state
     * @param folder where it goes
     * @param values the values of the checkpoint
     * @param failure why there will be no checkpoint, or {@code null}
     */
    PendingSave write(
            TakenState state,
            CheckpointFolder folder,
            JsonObject values,
            RuntimeException failure) {
        PendingSave save = new PendingSave(state.getStep());
        if (last != null && last.isGivenUp() && !last.isDone()) {
            state.close();
            save.fail(
                    new CheckpointException(
                            "the checkpoint of step "
                                    + last.getStep()
                                    + " was given up, and is still being written: is the disk of "
                                    + folder.getPath()
                                    + " there?"));
            return save;
        }
        awaitRead(); // of a save without a step between
        last = save;
        try {
            thread.execute(() -> write(save, state, folder, values, failure));
        } catch (RuntimeException | Error e) { // no thread to be had: nobody will read it
            state.close();
            save.fail(e);
        }
        return save;
    }

    /**
     * Checks that states can be written, before one is taken.
     *
     * @throws IllegalStateException if this is closed
     */
    void checkOpen() {
        if (thread.isShutdown()) {
            throw new IllegalStateException(
                    "No checkpoint is taken, because the TrainingState is closed: close it after"
                            + " the last save, or make another one of the trainer");
        }
    }

    private static void write(
            PendingSave save,
            TakenState state,
            CheckpointFolder folder,
            JsonObject values,
            RuntimeException failure) {
        try (TakenState taken = state;
                CheckpointWriter writer = taken.begin(folder)) {
            if (failure != null) {
                throw failure; // the other processes hear of it from the writer
            }
            writer.stream();
            if (!save.endReading()) {
                throw new CheckpointException(
                        "the weights were not written before the next step had to change them");
            }
            taken.release(); // the trainer may free its weights while files are synced
            writer.finish(values);
        } catch (IOException | RuntimeException | Error e) {
            save.fail(e);
            return;
        }
        save.complete();
    }

    /** Waits until the last state was read, or gives its save up. */
    void awaitRead() {
        if (last != null && !last.awaitRead(limit)) {
            logger.warn(
                    "The checkpoint of step {} is given up: the weights were not written within {}."
                            + " Training goes on",
                    last.getStep(),
                    limit);
        }
    }

    /** Ends the thread after the last save. */
    @Override
    public void close() {
        thread.shutdown();
        awaitRead(); // or gives it up
        boolean interrupted = Thread.interrupted();
        try {
            if (last != null && !last.isGivenUp()) {
                last.await();
            }
            if (!thread.awaitTermination(1, TimeUnit.SECONDS)) {
                thread.shutdownNow(); // closes a channel that hangs
            }
        } catch (InterruptedException e) {
            interrupted = true;
            thread.shutdownNow();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
