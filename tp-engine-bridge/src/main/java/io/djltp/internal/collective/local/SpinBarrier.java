package io.djltp.internal.collective.local;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * Where threads meet again and again: each comes, and goes on when all have come. A thread that
 * gives up a meeting breaks it for all, unless it has taken place before.
 *
 * <p>One word says how many meetings have been, how many threads have come to the present one, and
 * whether it is broken, so that coming is a single atomic operation, and giving up and being the
 * last to come exclude each other. Only who has waited too long sleeps, and only for sleepers there
 * is a lock.
 */
final class SpinBarrier {

    private static final int COUNT_BITS = 20;
    private static final long COUNT = (1L << COUNT_BITS) - 1;
    private static final long BROKEN = Long.MIN_VALUE;

    /** Longer than it takes to be woken, and than what most ranks are behind one another. */
    private static final long SPIN_NANOS = 50_000;

    private static final int SPINS = 16; // between two looks at the clock

    private final int size;
    private final boolean spins;
    private final BooleanSupplier gaveUp;
    private final AtomicLong state = new AtomicLong();
    private final AtomicInteger sleepers = new AtomicInteger();
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition met = lock.newCondition();

    /**
     * Creates a place to meet.
     *
     * @param size the number of threads
     * @param spins whether each thread has a processor that it may keep busy for a moment
     * @param gaveUp whether there is a reason to come no more
     */
    SpinBarrier(int size, boolean spins, BooleanSupplier gaveUp) {
        this.size = size;
        this.spins = spins;
        this.gaveUp = gaveUp;
    }

    /** Returns the number of the present meeting, from 0. */
    long number() {
        return (state.get() & ~BROKEN) >>> COUNT_BITS;
    }

    /**
     * Comes to the present meeting.
     *
     * @param check what the last one does before the meeting ends; it may refuse
     * @return whether the thread has come: not if the meeting is broken or was refused
     */
    boolean arrive(BooleanSupplier check) {
        while (true) {
            long seen = state.get();
            if (seen < 0) {
                return false;
            }
            boolean last = (seen & COUNT) == size - 1;
            if (last && !check.getAsBoolean()) {
                return false;
            }
            long next = last ? (seen & ~COUNT) + COUNT + 1 : seen + 1;
            if (state.compareAndSet(seen, next)) {
                if (last && sleepers.get() > 0) {
                    wake();
                }
                return true;
            }
        }
    }

    /**
     * Gives up a meeting.
     *
     * @param meeting its number
     * @return whether it is broken: not if all have come in the meantime
     */
    boolean breakBarrier(long meeting) {
        while (true) {
            long seen = state.get();
            if (seen >>> COUNT_BITS != meeting) {
                return seen < 0;
            }
            if (state.compareAndSet(seen, seen | BROKEN)) {
                return true;
            }
        }
    }

    /** Returns whether all have come to a meeting. */
    boolean hasEnded(long meeting) {
        return number() != meeting;
    }

    /**
     * Waits for a moment without sleep, if the threads may: they often come together, and to sleep
     * and be woken takes longer than most operations.
     */
    void spin(long meeting) {
        if (spins) {
            long end = System.nanoTime() + SPIN_NANOS;
            do {
                for (int i = 0; i < SPINS; i++) {
                    if (hasEnded(meeting)) {
                        return;
                    }
                    Thread.onSpinWait();
                }
            } while (!gaveUp.getAsBoolean() && System.nanoTime() < end);
        }
    }

    /**
     * Sleeps until a meeting has ended, somebody is woken by {@link #wake()}, or a time is over.
     *
     * @param meeting the number of the meeting
     * @param nanos the time
     * @throws InterruptedException if the thread is interrupted
     */
    void sleep(long meeting, long nanos) throws InterruptedException {
        lock.lock();
        sleepers.incrementAndGet(); // before the look at the state, as the last looks after it
        try {
            if (!hasEnded(meeting) && !gaveUp.getAsBoolean()) {
                met.awaitNanos(nanos);
            }
        } finally {
            sleepers.decrementAndGet();
            lock.unlock();
        }
    }

    /** Sleeps until a meeting has ended, whatever happens. */
    void sleepUntilEnd(long meeting) {
        if (hasEnded(meeting)) {
            return;
        }
        lock.lock();
        sleepers.incrementAndGet();
        try {
            while (!hasEnded(meeting)) {
                met.awaitUninterruptibly();
            }
        } finally {
            sleepers.decrementAndGet();
            lock.unlock();
        }
    }

    /** Wakes all who sleep. */
    void wake() {
        lock.lock();
        try {
            met.signalAll();
        } finally {
            lock.unlock();
        }
    }
}
