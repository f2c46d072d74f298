package io.djltp.checkpoint;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** A checkpoint that is being written. Can be asked by any thread. */
public final class PendingSave {

    private static final Logger logger = LoggerFactory.getLogger(PendingSave.class);

    /** Who needs the memory: the writing thread, until it has read all, or training by force. */
    private enum Stage {
        STREAMING,
        STREAMED,
        ABANDONED
    }

    private final long step;
    private final AtomicReference<Stage> stage = new AtomicReference<>(Stage.STREAMING);
    private volatile boolean awaited;
    private final CountDownLatch streaming = new CountDownLatch(1);
    private final CompletableFuture<Long> completed = new CompletableFuture<>();

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
     * Waits until the weights may change.
     *
     * @param limit how long; after that the save is given up, and the weights may change too
     */
    void awaitStreamed(Duration limit) {
        boolean interrupted = false;
        awaited = true;
        long end = System.nanoTime() + limit.toNanos();
        while (true) {
            try {
                if (!streaming.await(end - System.nanoTime(), TimeUnit.NANOSECONDS)
                        && stage.compareAndSet(Stage.STREAMING, Stage.ABANDONED)) {
                    logger.warn(
                            "The checkpoint of step {} is given up: the weights were not written"
                                    + " within {}. Training goes on",
                            step,
                            limit);
                }
                break;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Notes that the arrays are not read any more.
     *
     * @return whether all was read before anything was changed
     */
    boolean endStreaming() {
        boolean intact = stage.compareAndSet(Stage.STREAMING, Stage.STREAMED);
        streaming.countDown();
        return intact;
    }

    /** Returns whether somebody has waited until the weights may change, or waits. */
    boolean isAwaited() {
        return awaited;
    }

    boolean isAbandoned() {
        return stage.get() == Stage.ABANDONED;
    }

    void complete() {
        completed.complete(step);
    }

    void fail(Throwable failure) {
        endStreaming();
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
