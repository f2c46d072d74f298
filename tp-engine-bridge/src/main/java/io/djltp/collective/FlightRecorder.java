package io.djltp.collective;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CopyOnWriteArrayList;

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
    private final List<CallListener> listeners = new CopyOnWriteArrayList<>();
    private final long[] nanos = new long[Direction.values().length];
    private long since = System.nanoTime();
    private volatile Direction direction = Direction.OTHER;

    /** Creates a recorder of a rank that has not called anything yet. */
    public FlightRecorder() {}

    synchronized void add(CollectiveCall call) {
        ring[(int) (count++ % CAPACITY)] = call;
    }

    /**
     * Adds somebody who is told of the calls of this rank, in all of its groups.
     *
     * @param listener the listener
     */
    public void addListener(CallListener listener) {
        listeners.add(listener);
    }

    /**
     * Removes a listener.
     *
     * @param listener a listener that was added; of any other nothing is known
     */
    public void removeListener(CallListener listener) {
        listeners.remove(listener);
    }

    /**
     * Sets what the rank is doing from here on. Called by the rank alone.
     *
     * @param direction what the rank is doing
     * @return what it was doing before
     */
    public Direction setDirection(Direction direction) {
        Direction before = this.direction;
        long now = System.nanoTime();
        nanos[before.ordinal()] += now - since;
        since = now;
        this.direction = direction;
        return before;
    }

    /**
     * Returns how long the rank has been doing something, up to when it began what it does now. To
     * be read by the rank, or while no step is running.
     *
     * @param what what it was doing
     * @return the time in nanoseconds, its collective operations included
     */
    public long getNanos(Direction what) {
        return nanos[what.ordinal()];
    }

    /** Returns whether anybody is told of calls. */
    boolean hasListeners() {
        return !listeners.isEmpty();
    }

    /** Tells those who listen. */
    void notifyListeners(CollectiveCall call, int size) {
        for (CallListener listener : listeners) {
            listener.called(call, size, direction);
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
