package io.djltp.checkpoint;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A checkpoint that is being written. Can be asked by any thread. */
public final class PendingSave {

    private static final Logger logger = LoggerFactory.getLogger(PendingSave.class);

    private final long step;
    private final CompletableFuture<Long> completed = new CompletableFuture<>();

    /** Whether all weights were read before training had to go on without waiting any longer. */
    private final CompletableFuture<Boolean> read = new CompletableFuture<>();

    PendingSave(long step) {
        this.step = step;
    }

    /**
     * Returns the step after which the state was taken.
     *
     * @return the step
     */
    public long getStep() {
        return step;
    }

    /**
     * Returns whether it is over: complete, or failed.
     *
     * @return whether nothing is written any more
     */
    public boolean isDone() {
        return completed.isDone();
    }

    /**
     * Returns why there is no checkpoint.
     *
     * @return the failure, or {@code null} if there is none, or none yet
     */
    public Throwable getFailure() {
        return completed.handle((done, failure) -> failure).getNow(null);
    }

    /**
     * Waits until the checkpoint is complete or has failed.
     *
     * @return whether it is complete
     */
    public boolean await() {
        return completed.handle((done, failure) -> failure == null).join();
    }

    /**
     * Returns the save as a future, to do something after it in the writing thread, such as
     * removing old checkpoints.
     *
     * @return a future of the step, which is exceptional if the save has failed
     */
    public CompletableFuture<Long> toFuture() {
        return completed.copy();
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
     * Notes that the arrays are not read any more.
     *
     * @return whether all was read before anything was changed
     */
    boolean endReading() {
        read.complete(true);
        return read.join();
    }

    /** Returns whether training has gone on without waiting for the end of the reading. */
    boolean isGivenUp() {
        return !read.getNow(true);
    }

    void complete() {
        completed.complete(step);
    }

    void fail(Throwable failure) {
        endReading();
        boolean expected = failure instanceof IOException; // says all: a full disk, for instance
        logger.warn(
                "There is no checkpoint of step {}, and training goes on: {}",
                step,
                failure.getMessage(),
                expected ? null : failure);
        logger.debug("The checkpoint of step {}", step, failure);
        completed.completeExceptionally(failure);
    }
}
