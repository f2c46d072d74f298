package io.djltp.job;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;

/** Whether the job lives, as one process knows it; everything that waits in the job waits here. */
final class JobState {

    /** How the name of every thread of a job begins. */
    static final String THREAD_PREFIX = "tp-job-";

    private static final Logger logger = LoggerFactory.getLogger(JobState.class);

    private final AtomicBoolean over = new AtomicBoolean();
    // the failure, or null if the job was closed before it failed
    private final CompletableFuture<@Nullable JobFailedException> end = new CompletableFuture<>();
    private final Set<CompletableFuture<Void>> listeners = ConcurrentHashMap.newKeySet();

    /** Starts a thread of a job: a daemon, so that it keeps no process alive. */
    static void startThread(String name, Runnable task) {
        Thread thread = new Thread(task, THREAD_PREFIX + name);
        thread.setDaemon(true);
        thread.start();
    }

    /** Notes a failure, unless there is one already, or the job is closed. */
    void fail(JobFailedException cause) {
        fail(cause, () -> {});
    }

    /**
     * Notes a failure, unless there is one already, or the job is closed.
     *
     * @param cause the failure
     * @param first what to do if it is the first, before anyone in this process knows: who knows
     *     may close the job. Must not wait
     */
    void fail(JobFailedException cause, Runnable first) {
        if (over.compareAndSet(false, true)) {
            try {
                first.run();
            } finally { // else all who ask for the failure would wait for ever
                end.complete(cause);
            }
        }
    }

    void close() {
        if (over.compareAndSet(false, true)) {
            end.complete(null);
        }
    }

    boolean isOver() {
        return over.get();
    }

    /**
     * Lets a listener know of the failure, on a thread of its own.
     *
     * @return what takes the listener back
     */
    Runnable onFailure(Consumer<JobFailedException> action) {
        CompletableFuture<Void> told =
                end.thenAcceptAsync(
                        failure -> {
                            try {
                                if (failure != null) {
                                    action.accept(failure);
                                }
                            } catch (RuntimeException e) {
                                logger.warn("A listener of the job's failure failed itself", e);
                            }
                        },
                        task -> startThread("failure", task));
        listeners.add(told);
        return () -> {
            told.cancel(false);
            listeners.remove(told);
        };
    }

    /** Waits for the listeners of a failure that is known, but no longer than a time. */
    void awaitListeners(Duration time) {
        try {
            CompletableFuture.allOf(listeners.toArray(CompletableFuture<?>[]::new))
                    .get(time.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException | ExecutionException e) {
            logger.debug("The listeners of the job's failure are not done", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Throws the failure if there is one, or that the job is closed. */
    void check() {
        if (isOver()) {
            JobFailedException failure = end.join();
            if (failure != null) {
                throw failure.copy();
            }
            throw new IllegalStateException("The job is closed: use it before close()");
        }
    }

    /**
     * Waits until something has come.
     *
     * @param value what is to come
     * @param limit how long to wait
     * @return what has come, or {@code null} if it has not in time
     * @throws JobFailedException if the job fails first
     */
    <T extends @Nullable Object> @Nullable T await(CompletableFuture<T> value, Duration limit)
            throws InterruptedException {
        try {
            CompletableFuture.anyOf(value, end).get(limit.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            return null;
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
        if (!value.isDone()) {
            check();
        }
        return value.join();
    }

    /** Waits for the failure; returns {@code null} if there is none in time. */
    @Nullable JobFailedException awaitFailure(Duration time) {
        try {
            JobFailedException failure = await(end, time);
            return failure == null ? null : failure.copy();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return null;
        }
    }
}
