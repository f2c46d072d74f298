package io.djltp.checkpoint;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A checkpoint that is being written. */
final class PendingSave {

    private final long step;
    private final CompletableFuture<Void> completed = new CompletableFuture<>();

    /** Whether all weights were read before training had to go on without waiting any longer. */
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

    /** Returns why there is no checkpoint; {@code null} if there is one, or nobody knows yet. */
    Throwable getFailure() {
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

    /** Notes that arrays are not read any more; returns whether none was changed before that. */
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
    void end(Throwable failure) {
        endReading();
        if (failure == null) {
            completed.complete(null);
        } else {
            completed.completeExceptionally(failure);
        }
    }
}
