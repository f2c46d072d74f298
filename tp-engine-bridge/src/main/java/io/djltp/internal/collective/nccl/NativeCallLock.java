package io.djltp.internal.collective.nccl;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

/** Lets one thread at a time make native calls for a rank, none of which takes long. */
final class NativeCallLock {

    private static final Logger logger = LoggerFactory.getLogger(NativeCallLock.class);

    /** How long a thread that is stuck is waited for. */
    static final Duration PATIENCE = Duration.ofSeconds(2);

    private final ReentrantLock lock = new ReentrantLock();

    /** Makes calls. */
    void run(Runnable calls) {
        lock.lock();
        try {
            calls.run();
        } finally {
            lock.unlock();
        }
    }

    /** Makes calls and returns what they give. */
    <T> T get(Supplier<T> calls) {
        lock.lock();
        try {
            return calls.get();
        } finally {
            lock.unlock();
        }
    }

    /**
     * Makes calls, unless another thread is at it.
     *
     * @param calls the calls
     * @param busy what to return without them
     * @return what they give, or that
     */
    <T> T getUnlessBusy(Supplier<T> calls, T busy) {
        if (!lock.tryLock()) {
            return busy;
        }
        try {
            return calls.get();
        } finally {
            lock.unlock();
        }
    }

    /**
     * Makes calls, even if another thread is stuck in one that only they may end.
     *
     * @param rank the rank, for the log
     * @param deadline until when the other thread is waited for, by {@link System#nanoTime()}
     * @param calls the calls
     * @return what they give
     */
    <T> T getEvenIfStuck(int rank, long deadline, Supplier<T> calls) {
        boolean locked = waitFor(rank, deadline);
        try {
            return calls.get();
        } finally {
            if (locked) {
                lock.unlock();
            }
        }
    }

    private boolean waitFor(int rank, long deadline) {
        Backoff backoff = new Backoff();
        while (!lock.tryLock()) {
            if (System.nanoTime() > deadline) {
                logger.warn("Rank {} is stuck in a native call: aborting under it", rank);
                return false;
            }
            backoff.pause();
        }
        return true;
    }
}
