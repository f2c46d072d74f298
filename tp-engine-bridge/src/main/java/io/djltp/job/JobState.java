package io.djltp.job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Whether the job lives, as one process knows it; everything that waits in the job waits here. */
final class JobState {

    private static final Logger logger = LoggerFactory.getLogger(JobState.class);

    private final List<Consumer<JobFailedException>> listeners = new ArrayList<>();
    private JobFailedException failure;
    private boolean closed;

    /**
     * Notes a failure, unless there is one already.
     *
     * @param cause the failure
     * @return whether it is the first
     */
    boolean fail(JobFailedException cause) {
        return fail(cause, () -> {});
    }

    /**
     * Notes a failure, unless there is one already.
     *
     * @param cause the failure
     * @param first what to do if it is the first, before anyone in this process knows: who knows
     *     may close the job. Must not wait
     * @return whether it is the first
     */
    boolean fail(JobFailedException cause, Runnable first) {
        List<Consumer<JobFailedException>> told;
        synchronized (this) {
            if (failure != null || closed) {
                return false;
            }
            failure = cause;
            first.run();
            told = List.copyOf(listeners);
            listeners.clear();
            notifyAll();
        }
        if (!told.isEmpty()) {
            tell(told, cause);
        }
        return true;
    }

    void onFailure(Consumer<JobFailedException> listener) {
        JobFailedException known;
        synchronized (this) {
            known = failure;
            if (known == null) {
                listeners.add(listener);
            }
        }
        if (known != null) {
            tell(List.of(listener), known);
        }
    }

    synchronized JobFailedException failure() {
        return failure;
    }

    synchronized boolean isOver() {
        return closed || failure != null;
    }

    synchronized void close() {
        closed = true;
        notifyAll();
    }

    /** Wakes up those who wait, because what they wait for may have come. */
    synchronized void changed() {
        notifyAll();
    }

    /** Throws the failure if there is one, or that the job is closed. */
    synchronized void check() {
        if (failure != null) {
            throw failure.copy();
        }
        if (closed) {
            throw new IllegalStateException("The job is closed: use it before close()");
        }
    }

    /**
     * Waits until something has come.
     *
     * @param what returns it, or {@code null} as long as it has not come
     * @param deadline until when, on the clock of {@link System#nanoTime}
     * @return what has come, or {@code null} if it has not by the deadline
     * @throws JobFailedException if the job fails first
     */
    synchronized <T> T await(Supplier<T> what, long deadline) throws InterruptedException {
        while (true) {
            T value = what.get();
            if (value != null) {
                return value;
            }
            check();
            if (!waitUntil(deadline)) {
                return null;
            }
        }
    }

    synchronized JobFailedException awaitFailure(Duration time) {
        long deadline = System.nanoTime() + time.toNanos();
        try {
            while (failure == null && !closed && waitUntil(deadline)) {
                continue;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return failure == null ? null : failure.copy();
    }

    private boolean waitUntil(long deadline) throws InterruptedException {
        long left = deadline - System.nanoTime();
        if (left <= 0) {
            return false;
        }
        wait(left / 1_000_000 + 1);
        return true;
    }

    private static void tell(
            List<Consumer<JobFailedException>> listeners, JobFailedException failure) {
        Runnable task =
                () -> {
                    for (Consumer<JobFailedException> listener : listeners) {
                        try {
                            listener.accept(failure);
                        } catch (RuntimeException e) {
                            logger.warn("A listener of the job's failure failed itself", e);
                        }
                    }
                };
        Threads.start("failure", task);
    }
}
