package io.djltp.internal.decode;

import io.djltp.collective.CollectiveException;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;

/**
 * Where the ranks of one process put small rows that they add up or gather, for some hundred times
 * a second and rank. It does what their communicators do, and waits in a loop for longer: between
 * the products of a token a rank is never long behind the others, and to sleep and be woken costs
 * more than that.
 */
public final class SharedRows {

    private static final int CAPACITY = 1 << 20; // numbers of all ranks, as each adds up all

    private static final int SPINS = 16; // between two looks at the clock
    private static final long MOST_NANOS = TimeUnit.MICROSECONDS.toNanos(100);
    private static final long LEAST_NANOS = TimeUnit.MICROSECONDS.toNanos(2);
    private static final long NAP_NANOS = TimeUnit.MILLISECONDS.toNanos(10);
    private static final int APART = 16; // numbers of two ranks, not in one line of the cache

    private final int ranks;
    private final float[][][] parts; // [2][ranks]: a rank is at most one meeting ahead
    private final AtomicLong arrived = new AtomicLong();
    private final AtomicInteger sleepers = new AtomicInteger();
    private final AtomicReferenceArray<@Nullable Thread> threads;
    private final long[] patience; // nanoseconds that a rank waits in the loop
    private volatile @Nullable Throwable failure;

    /**
     * Creates a place to meet.
     *
     * @param ranks the ranks, all of this process
     */
    public SharedRows(int ranks) {
        this.ranks = ranks;
        parts = new float[2][ranks][0];
        threads = new AtomicReferenceArray<>(ranks);
        patience = new long[ranks * APART];
        Arrays.fill(patience, MOST_NANOS);
    }

    /**
     * Says that a rank comes no more.
     *
     * @param cause why
     */
    public void fail(Throwable cause) {
        failure = cause;
        wake();
    }

    /** Returns whether there is room for so many numbers of each rank. */
    boolean hasRoom(int count) {
        return count <= CAPACITY / ranks;
    }

    /** Returns where a rank puts its numbers before the meeting of a number. */
    float[] room(int rank, long number, int count) {
        float[][] all = parts[(int) (number & 1)];
        if (all[rank].length < count) {
            all[rank] = new float[count];
        }
        return all[rank];
    }

    /** Waits for the numbers of the others. */
    private float[][] meet(int rank, long number) {
        long target = (number + 1) * ranks;
        long come = arrived.incrementAndGet();
        if (come < target) {
            await(rank, target);
        } else if (sleepers.get() > 0) {
            wake();
        }
        return parts[(int) (number & 1)];
    }

    /**
     * Waits in a loop, then asleep. Where processors have other work, too, whoever waits in a loop
     * keeps from them what it waits for: the loop is short as long as it was in vain.
     */
    private void await(int rank, long target) {
        long begin = System.nanoTime();
        long most = patience[rank * APART];
        long waited;
        do {
            for (int i = 0; i < SPINS && arrived.get() < target; i++) {
                Thread.onSpinWait();
            }
            waited = System.nanoTime() - begin;
        } while (waited < most && arrived.get() < target);
        if (arrived.get() < target) {
            sleep(rank, target);
            waited = System.nanoTime() - begin;
        }
        patience[rank * APART] =
                waited > MOST_NANOS
                        ? Math.max(LEAST_NANOS, most / 4)
                        : Math.min(MOST_NANOS, most * 2);
    }

    /** Sleeps until all have come. What is ahead of the processor's other work is woken at once. */
    private void sleep(int rank, long target) {
        threads.set(rank, Thread.currentThread());
        sleepers.incrementAndGet(); // before the look at the number, as the last looks after it
        try {
            while (arrived.get() < target) {
                if (failure != null) {
                    throw new CollectiveException("another rank has failed", failure);
                }
                LockSupport.parkNanos(this, NAP_NANOS);
            }
        } finally {
            sleepers.decrementAndGet();
            threads.set(rank, null);
        }
    }

    private void wake() {
        for (int i = 0; i < ranks; i++) {
            LockSupport.unpark(threads.get(i)); // nobody's is none
        }
    }

    /** Adds up the numbers that are there, of two ranks or more, in the order of ranks. */
    void sum(int rank, long number, int count, float[] to) {
        float[][] all = meet(rank, number);
        float[] sum = all[0];
        for (int i = 1; i < ranks; i++) {
            float[] more = all[i];
            for (int j = 0; j < count; j++) {
                to[j] = sum[j] + more[j];
            }
            sum = to;
        }
    }

    /** Puts the numbers that are there one after another. */
    void gather(int rank, long number, int count, float[] to) {
        float[][] all = meet(rank, number);
        for (int i = 0; i < ranks; i++) {
            System.arraycopy(all[i], 0, to, i * count, count);
        }
    }
}
