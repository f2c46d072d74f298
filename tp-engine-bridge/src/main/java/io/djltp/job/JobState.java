package io.djltp.job;

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

    private static final Logger logger = LoggerFactory.getLogger(JobState.class);

    private final AtomicBoolean over = new AtomicBoolean();
    // the failure, or null if the job was closed before it failed
    private final CompletableFuture<JobFailedException> end = new CompletableFuture<>();
    private final Set<Listener> listeners = ConcurrentHashMap.newKeySet();

    /**
     * Who is to know of the failure.
     *
     * @param action what is done then
     * @param told whether the end is known to it
     * @param done ends when that is done
     */
    private record Listener(
            Consumer<JobFailedException> action, AtomicBoolean told, CompletableFuture<Void> done) {

        /** Lets it know of the end, once, on a thread of its own. */
        void tell(JobFailedException failure) {
            if (told.compareAndSet(false, true)) {
                Threads.start("failure", () -> run(failure));
            }
        }

        private void run(JobFailedException failure) {
            try {
                if (failure != null) {
                    action.accept(failure);
                }
            } catch (RuntimeException e) {
                logger.warn("A listener of the job's failure failed itself", e);
            } finally {
                done.complete(null);
            }
        }
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
                end(cause);
            }
        }
    }

    void close() {
        if (over.compareAndSet(false, true)) {
            end(null);
        }
    }

    private void end(JobFailedException failure) {
        end.complete(failure);
        listeners.forEach(listener -> listener.tell(failure));
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
        Listener listener = new Listener(action, new AtomicBoolean(), new CompletableFuture<>());
        listeners.add(listener);
        if (end.isDone()) {
            listener.tell(end.join());
        }
        return () -> listeners.remove(listener);
    }

    /** Waits for the listeners of a failure that is known, but no longer than a time. */
    void awaitListeners(Duration time) {
        CompletableFuture<?>[] all =
                listeners.stream().map(Listener::done).toArray(CompletableFuture<?>[]::new);
        try {
            CompletableFuture.allOf(all).get(time.toNanos(), TimeUnit.NANOSECONDS);
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
    <T> T await(CompletableFuture<T> value, Duration limit) throws InterruptedException {
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

    JobFailedException awaitFailure(Duration time) {
        try {
            JobFailedException failure = end.get(time.toNanos(), TimeUnit.NANOSECONDS);
            return failure == null ? null : failure.copy();
        } catch (TimeoutException e) {
            return null;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return null;
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }
}
