package io.djltp.collective.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.GroupFailure;

import java.time.Duration;
import java.util.concurrent.locks.LockSupport;

/**
 * Waits for the requests of one group, one at a time. MPI itself would wait for ever for a process
 * that is gone; the poller gives up when the group fails or its time is over.
 *
 * <p>When it gives up, MPI still owns the memory of the request: see {@link #isPending()}.
 */
final class MpiPoller {

    /** How long a request is tested in a row: longer than a small operation takes. */
    private static final long SPIN_NANOS = 50_000;

    /**
     * How long it is tested without a pause for each of its bytes, at the pace of a slow network:
     * MPI moves them while it tests.
     */
    private static final long YIELD_NANOS_PER_BYTE = 4;

    private static final long PAUSE_NANOS = 20_000;

    private final GroupFailure failure;
    private final int rank;
    private final int size;
    private final Memory memory = new Memory(2 * Long.BYTES); // the request, and whether it is done
    private final long request = Pointer.nativeValue(memory);
    private final long flag = request + Long.BYTES;

    private Object what;
    private Duration timeout;
    private long began;
    private boolean pending;

    /**
     * Creates a poller.
     *
     * @param failure the failure of the group
     * @param rank this rank, for errors
     * @param size the number of ranks, for errors
     */
    MpiPoller(GroupFailure failure, int rank, int size) {
        this.failure = failure;
        this.rank = rank;
        this.size = size;
    }

    /**
     * Begins an operation, which may take several requests.
     *
     * @param operation what is done, for errors
     * @param limit how long it may take
     */
    void begin(Object operation, Duration limit) {
        what = operation;
        timeout = limit;
        began = System.nanoTime();
    }

    /**
     * Returns where MPI is to write the next request.
     *
     * @return the address
     */
    long request() {
        return request;
    }

    /**
     * Returns whether a wait was given up, so that MPI may still read and write the memory of the
     * request, this poller's included.
     *
     * @return whether a request is under way
     */
    boolean isPending() {
        return pending;
    }

    /**
     * Waits for a request that moves hardly anything.
     *
     * @param code what the function that began it has returned
     * @param function the function
     * @throws CollectiveException if it fails, the group fails, or the time is over
     */
    void await(int code, String function) {
        await(code, function, 0);
    }

    /**
     * Waits for a request.
     *
     * @param code what the function that began it has returned
     * @param function the function
     * @param bytes how much this rank sends or receives
     * @throws CollectiveException if it fails, the group fails, or the time is over
     */
    void await(int code, String function, long bytes) {
        MpiLibrary.check(code, function);
        pending = true;
        long yieldFrom = System.nanoTime() + SPIN_NANOS;
        long pauseFrom = yieldFrom + bytes * YIELD_NANOS_PER_BYTE;
        while (!isDone(function)) {
            failure.check(rank, size);
            long now = System.nanoTime();
            if (now - began > timeout.toNanos()) {
                throw new CollectiveException(
                        "time-out after %d ms: rank %d of %d waits in %s"
                                .formatted(timeout.toMillis(), rank, size, what));
            }
            if (now < yieldFrom) {
                Thread.onSpinWait();
            } else if (now < pauseFrom) {
                Thread.yield(); // the core may be wanted for computing
            } else {
                LockSupport.parkNanos(PAUSE_NANOS);
            }
        }
        pending = false;
    }

    private boolean isDone(String function) {
        MpiLibrary.check(MpiFunctions.MPI_Test(request, flag, 0), function);
        return memory.getInt(Long.BYTES) != 0;
    }
}
