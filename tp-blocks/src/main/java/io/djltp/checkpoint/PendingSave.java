package io.djltp.checkpoint;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.concurrent.CompletableFuture;

/** A checkpoint that is being written. Can be asked by any thread. */
public final class PendingSave {

    private static final Logger logger = LoggerFactory.getLogger(PendingSave.class);

    private final long step;
    private final StateReading reading;
    private final CompletableFuture<Long> completed = new CompletableFuture<>();

    PendingSave(long step, StateReading reading) {
        this.step = step;
        this.reading = reading;
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

    /** Returns what is read for it. */
    StateReading reading() {
        return reading;
    }

    void complete() {
        completed.complete(step);
    }

    void fail(Throwable failure) {
        reading.end();
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
