package io.djltp.checkpoint;

import io.djltp.update.RowReader;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * How far the arrays of a state were read by the writing thread, and who waits for that: training
 * follows it, and changes each row once it was read.
 */
final class StateReading {

    /** Who needs the memory: the writing thread, until it has read all, or training by force. */
    private enum Stage {
        READING,
        READ,
        ABANDONED
    }

    private final List<ReadArray> others = new ArrayList<>();
    private final Map<Integer, Map<String, List<ReadArray>>> ofParameters = new HashMap<>();
    private final AtomicReference<Stage> stage = new AtomicReference<>(Stage.READING);
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition progress = lock.newCondition();
    private final AtomicLong end = new AtomicLong(); // of all waiting, or 0 before the first
    private volatile boolean awaited;
    private volatile boolean hurried;

    /** Adds an array, before the reading begins. */
    void add(int rank, ReadArray array) {
        if (array.parameter() == null) {
            others.add(array);
        } else {
            ofParameters
                    .computeIfAbsent(rank, key -> new HashMap<>())
                    .computeIfAbsent(array.parameter(), key -> new ArrayList<>())
                    .add(array);
        }
    }

    /** Notes how many bytes of an array were read so far. */
    void setRead(ReadArray array, long soFar) {
        array.setRead(soFar);
        wake();
    }

    private void wake() {
        if (awaited) {
            lock.lock();
            try {
                progress.signalAll();
            } finally {
                lock.unlock();
            }
        }
    }

    /**
     * Returns whether an update waits, or has waited: it is about to need the rest as fast as it
     * changes rows. The page cache takes that faster than the disk; it costs more of the processor,
     * which has nothing to do while the update waits.
     */
    boolean isHurried() {
        return hurried;
    }

    /** Returns who reads a parameter, or null if nobody does any more. */
    RowReader ofParameter(int rank, String name, Duration limit, Runnable abandoned) {
        List<ReadArray> arrays = ofParameters.getOrDefault(rank, Map.of()).get(name);
        return arrays == null || !isReading() || isRead(arrays, RowReader.ALL)
                ? null
                : row -> awaitRows(() -> isRead(arrays, row), limit, abandoned);
    }

    private void awaitRows(BooleanSupplier free, Duration limit, Runnable abandoned) {
        if (!free.getAsBoolean()) {
            hurried = true;
            await(free, limit, abandoned);
        }
    }

    /** Waits until what is of no parameter was read. */
    void awaitOthers(Duration limit, Runnable abandoned) {
        await(() -> isRead(others, RowReader.ALL), limit, abandoned);
    }

    /** Waits until all was read. */
    void awaitAll(Duration limit, Runnable abandoned) {
        await(() -> false, limit, abandoned);
    }

    private static boolean isRead(List<ReadArray> arrays, long row) {
        for (ReadArray array : arrays) {
            if (!array.isReadUntil(row)) {
                return false;
            }
        }
        return true;
    }

    /**
     * Waits.
     *
     * @param free for what, if not for the end of all
     * @param limit how long, from when the first has waited; then the reading is abandoned
     * @param abandoned run by who abandons it
     */
    private void await(BooleanSupplier free, Duration limit, Runnable abandoned) {
        if (!isReading() || free.getAsBoolean()) {
            return;
        }
        boolean interrupted = false;
        end.compareAndSet(0, System.nanoTime() + limit.toNanos());
        lock.lock();
        try {
            awaited = true;
            while (isReading() && !free.getAsBoolean()) {
                long left = end.get() - System.nanoTime();
                if (left <= 0 && stage.compareAndSet(Stage.READING, Stage.ABANDONED)) {
                    progress.signalAll();
                    abandoned.run();
                    break;
                }
                try {
                    progress.await(left, TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            lock.unlock();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Notes that the arrays are not read any more.
     *
     * @return whether all was read before anything was changed
     */
    boolean end() {
        boolean intact = stage.compareAndSet(Stage.READING, Stage.READ);
        awaited = true; // wakes whoever comes between
        wake();
        return intact;
    }

    private boolean isReading() {
        return stage.get() == Stage.READING;
    }

    /** Returns whether training has gone on without waiting for the end. */
    boolean isAbandoned() {
        return stage.get() == Stage.ABANDONED;
    }
}
