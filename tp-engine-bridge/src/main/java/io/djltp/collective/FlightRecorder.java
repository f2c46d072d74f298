package io.djltp.collective;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * The last collective operations of a rank, for the report of a failure: which were done, and which
 * it waits in. Any thread may read it.
 *
 * <p>The idea is that of PyTorch's flight recorder for NCCL.
 */
public final class FlightRecorder {

    /** How many operations are kept. */
    static final int CAPACITY = 64;

    private final CollectiveCall[] ring = new CollectiveCall[CAPACITY];
    private long count;
    private volatile CallListener listener;
    private volatile Direction direction = Direction.OTHER;

    /** Creates a recorder of a rank that has not called anything yet. */
    public FlightRecorder() {}

    synchronized void add(CollectiveCall call) {
        ring[(int) (count++ % CAPACITY)] = call;
    }

    /**
     * Sets who is told of the calls of this rank, in all of its groups.
     *
     * @param listener the listener, or {@code null} for nobody
     */
    public void setListener(CallListener listener) {
        this.listener = listener;
    }

    /**
     * Sets what the rank is doing from here on.
     *
     * @param direction what the rank is doing
     * @return what it was doing before
     */
    public Direction setDirection(Direction direction) {
        Direction before = this.direction;
        this.direction = direction;
        return before;
    }

    /** Tells the listener, if there is one. */
    void tell(CollectiveCall call, int size) {
        CallListener told = listener;
        if (told != null) {
            told.called(call, size, direction);
        }
    }

    /**
     * Returns how many operations the rank has called.
     *
     * @return the number of calls, complete or not
     */
    public synchronized long getCalls() {
        return count;
    }

    /**
     * Returns what the rank is in, or was in last.
     *
     * @return such as {@code in all-reduce #412 (SUM) of (64, 512) float32 issued by
     *     ColumnParallelLinear}
     */
    public synchronized String latest() {
        if (count == 0) {
            return "has not called anything yet";
        }
        // the oldest that is not done is what the rank waits for
        for (long i = Math.max(0, count - CAPACITY); i < count; i++) {
            CollectiveCall call = ring[(int) (i % CAPACITY)];
            if (!call.isFinished()) {
                return "in " + call;
            }
        }
        return "last in " + ring[(int) ((count - 1) % CAPACITY)];
    }

    /**
     * Returns the last operations, the oldest first.
     *
     * @return a line for each operation: whether it is done, how long it took, what it was
     */
    public synchronized List<String> entries() {
        List<String> entries = new ArrayList<>();
        for (long i = Math.max(0, count - CAPACITY); i < count; i++) {
            CollectiveCall call = ring[(int) (i % CAPACITY)];
            entries.add(
                    String.format(
                            Locale.ROOT,
                            "%s %10.3f ms  %s",
                            call.isFinished() ? "done   " : "waiting",
                            call.duration() / 1e6,
                            call));
        }
        return entries;
    }
}
