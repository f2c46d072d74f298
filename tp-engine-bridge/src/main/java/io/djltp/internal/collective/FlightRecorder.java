package io.djltp.internal.collective;

import io.djltp.collective.TrafficTable.Direction;

import java.util.ArrayDeque;
import java.util.Deque;
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

    private static final int CAPACITY = 64;

    private final Deque<CollectiveCall> last = new ArrayDeque<>(); // the oldest first
    private long count;
    private final List<Listener> listeners = new CopyOnWriteArrayList<>();
    private final long[] nanos = new long[Direction.values().length];
    private long since = System.nanoTime();
    private volatile Direction direction = Direction.OTHER;

    /** Creates a recorder of a rank that has not called anything yet. */
    public FlightRecorder() {}

    /** Is told of the collective operations of a rank. */
    @FunctionalInterface
    public interface Listener {

        /**
         * Is told of a call in a group of several ranks, in the thread that has called.
         *
         * @param call the call, complete or on its way
         * @param size the number of ranks of the group
         * @param direction what the rank is doing
         */
        void called(CollectiveCall call, int size, Direction direction);
    }

    synchronized void add(CollectiveCall call) {
        count++;
        last.add(call);
        if (last.size() > CAPACITY) {
            last.remove();
        }
    }

    /**
     * Adds somebody who is told of the calls of this rank, in all of its groups.
     *
     * @param listener the listener
     */
    public void addListener(Listener listener) {
        listeners.add(listener);
    }

    /**
     * Removes a listener.
     *
     * @param listener a listener that was added; of any other nothing is known
     */
    public void removeListener(Listener listener) {
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

    /** Returns what the rank is doing. */
    Direction getDirection() {
        return direction;
    }

    /** Returns whether anybody is told of calls. */
    boolean hasListeners() {
        return !listeners.isEmpty();
    }

    /** Tells those who listen. */
    void notifyListeners(CollectiveCall call, int size) {
        listeners.forEach(listener -> listener.called(call, size, direction));
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
        // the oldest that is not done is what the rank waits for
        for (CollectiveCall call : last) {
            if (!call.isFinished()) {
                return "in " + call;
            }
        }
        return last.isEmpty() ? "has not called anything yet" : "last in " + last.peekLast();
    }

    /**
     * Returns the last operations, the oldest first.
     *
     * @return a line for each operation: whether it is done, how long it took, what it was
     */
    public synchronized List<String> entries() {
        return last.stream().map(FlightRecorder::entry).toList();
    }

    private static String entry(CollectiveCall call) {
        String state = call.isFinished() ? "done   " : "waiting";
        return String.format(Locale.ROOT, "%s %10.3f ms  %s", state, call.duration() / 1e6, call);
    }
}
