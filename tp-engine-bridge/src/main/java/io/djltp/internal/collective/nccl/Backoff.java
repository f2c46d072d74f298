package io.djltp.internal.collective.nccl;

import java.util.concurrent.locks.LockSupport;

/** How a thread waits for what it can only ask for: at first without sleep, then with ever more. */
final class Backoff {

    private static final int SPINS = 100;
    private static final int YIELDS = 200;
    private static final long FIRST_SLEEP = 20_000;
    private static final long LONGEST_SLEEP = 1_000_000;

    private int rounds;
    private long sleep = FIRST_SLEEP;

    /** Waits a moment; returns at once if the thread is interrupted, and leaves the flag. */
    void pause() {
        rounds++;
        if (rounds <= SPINS) {
            Thread.onSpinWait();
        } else if (rounds <= SPINS + YIELDS) {
            Thread.yield();
        } else {
            LockSupport.parkNanos(sleep);
            sleep = Math.min(LONGEST_SLEEP, sleep + sleep / 4);
        }
    }
}
