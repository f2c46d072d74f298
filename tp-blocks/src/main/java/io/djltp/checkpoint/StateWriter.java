package io.djltp.checkpoint;

import io.djltp.checkpoint.CheckpointWriter.Source;
import io.djltp.checkpoint.TrainingState.TakenState;
import io.djltp.checkpoint.TrainingState.Tensor;
import io.djltp.internal.events.CheckpointEvent;
import io.djltp.internal.events.FlightEvents;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Writes states in a thread of its own, one after the other. Before weights are changed, {@link
 * #awaitRead()} waits until that thread has read them.
 */
final class StateWriter implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(StateWriter.class);

    private final StateLayout layout;
    private final String mesh;
    private final Duration limit;
    private final ExecutorService thread =
            Executors.newSingleThreadExecutor(
                    task -> {
                        Thread writing = new Thread(task, "checkpoint");
                        writing.setDaemon(true); // a disk that hangs does not keep the process
                        return writing;
                    });
    private @Nullable PendingSave last;
    private volatile @Nullable Throwable failure;

    /**
     * Creates a writer.
     *
     * @param limit how long a step waits for the weights to be written
     */
    StateWriter(StateLayout layout, String mesh, Duration limit) {
        this.layout = layout;
        this.mesh = mesh;
        this.limit = limit;
    }

    /** Returns why the last save that ended has failed; {@code null} if it has not. */
    @Nullable Throwable failure() {
        return failure;
    }

    /**
     * Begins to write a state, which this closes, whatever happens.
     *
     * @param taken the state
     * @param folder where it goes
     * @param keep how many checkpoints stay when it is complete
     */
    PendingSave write(TakenState taken, CheckpointFolder folder, int keep) {
        PendingSave save = new PendingSave(taken.step());
        if (last != null && last.isGivenUp() && !last.isDone()) {
            taken.close();
            String why =
                    "the checkpoint of step %d was given up, and is still being written: is the"
                            + " disk of %s there?";
            end(save, new CheckpointException(why.formatted(last.getStep(), folder.getPath())));
            return save;
        }
        awaitRead(); // of a save without a step between
        last = save;
        try {
            thread.execute(() -> write(save, taken, folder, keep));
        } catch (RuntimeException | Error e) { // no thread to be had: nobody will read it
            taken.close();
            end(save, e);
        }
        return save;
    }

    private void write(PendingSave save, TakenState taken, CheckpointFolder folder, int keep) {
        Map<Integer, Integer> writers = layout.writers();
        String path = folder.getPath().toString();
        CheckpointEvent event =
                FlightEvents.areUsed() ? new CheckpointEvent(taken.step(), path) : null;
        try (taken;
                CheckpointWriter writer =
                        folder.begin(taken.step(), mesh, layout.parts(), writers.keySet())) {
            for (Tensor each : taken.tensors()) {
                writer.add(
                        each.tensor(),
                        part -> {
                            int rank =
                                    Objects.requireNonNull(
                                            writers.get(part), "a part of this process");
                            return Source.of(each.tensor(), part, each.arrays().get(rank));
                        });
            }
            if (taken.failure() != null) {
                throw taken.failure(); // the other processes hear of it from the writer
            }
            writer.stream();
            if (!save.endReading()) {
                throw new CheckpointException(
                        "the weights were not written before the next step had to change them");
            }
            taken.close(); // the trainer may free its weights while files are synced
            writer.finish(taken.values());
            if (event != null) {
                event.setWritten(writer.getBytes());
            }
        } catch (IOException | RuntimeException | Error e) {
            end(save, e);
            return;
        } finally {
            if (event != null) {
                event.commit();
            }
        }
        prune(folder, keep);
        end(save, null);
    }

    private static void prune(CheckpointFolder folder, int keep) {
        try {
            if (folder.isFirst()) {
                folder.prune(keep);
            }
        } catch (IOException e) {
            logger.warn("Old checkpoints cannot be removed: {}", e.getMessage());
        }
    }

    private void end(PendingSave save, @Nullable Throwable why) {
        failure = why;
        if (why != null) {
            boolean expected = why instanceof IOException; // says all: a full disk, for instance
            logger.warn(
                    "There is no checkpoint of step {}, and training goes on: {}",
                    save.getStep(),
                    why.getMessage(),
                    expected ? null : why);
            logger.debug("The checkpoint of step {}", save.getStep(), why);
        }
        save.end(why);
    }

    /** Waits until the last state was read, or gives its save up. */
    void awaitRead() {
        if (last != null && !last.isGivenUp() && !last.awaitRead(limit)) {
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

    /** A checkpoint that is being written. */
    static final class PendingSave {

        private final long step;
        private final CompletableFuture<Void> completed = new CompletableFuture<>();

        /**
         * Whether all weights were read before training had to go on without waiting any longer.
         */
        private final CompletableFuture<Boolean> read = new CompletableFuture<>();

        PendingSave(long step) {
            this.step = step;
        }

        /** Returns the step after which the state was taken. */
        long getStep() {
            return step;
        }

        /** Returns whether nothing is written any more. */
        boolean isDone() {
            return completed.isDone();
        }

        /**
         * Returns why there is no checkpoint; {@code null} if there is one, or nobody knows yet.
         */
        @Nullable Throwable getFailure() {
            return completed.handle((done, failure) -> failure).getNow(null);
        }

        /** Waits until the checkpoint is complete or has failed; returns whether it is complete. */
        boolean await() {
            return completed.handle((done, failure) -> failure == null).join();
        }

        /**
         * Waits until all arrays were read. Gives the save up if that takes too long.
         *
         * @param limit how long to wait
         * @return false if the save is given up
         */
        boolean awaitRead(Duration limit) {
            return read.completeOnTimeout(false, limit.toNanos(), TimeUnit.NANOSECONDS).join();
        }

        /**
         * Notes that arrays are not read any more; returns whether none was changed before that.
         */
        boolean endReading() {
            read.complete(true);
            return read.join();
        }

        /** Returns whether training has gone on without waiting for the end of the reading. */
        boolean isGivenUp() {
            return !read.getNow(true);
        }

        /**
         * Notes the end.
         *
         * @param failure why there is no checkpoint, or {@code null}
         */
        void end(@Nullable Throwable failure) {
            endReading();
            if (failure == null) {
                completed.complete(null);
            } else {
                completed.completeExceptionally(failure);
            }
        }
    }
}
