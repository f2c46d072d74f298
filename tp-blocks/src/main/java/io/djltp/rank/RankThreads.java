package io.djltp.rank;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** A long-lived thread for each rank of a process. */
final class RankThreads {

    private final List<ExecutorService> threads = new ArrayList<>();

    /** Starts the threads, which have the names of the ranks. */
    RankThreads(List<ParallelContext> ranks) {
        for (ParallelContext rank : ranks) {
            threads.add(
                    Executors.newSingleThreadExecutor(
                            task -> {
                                Thread thread = new Thread(task, "tp-rank-" + rank.getRank());
                                thread.setDaemon(true);
                                return thread;
                            }));
        }
    }

    /** Lets a rank compute something after what it computes now. */
    <T> Future<T> submit(int index, Callable<T> task) {
        return threads.get(index).submit(task);
    }

    /** Takes nothing more. */
    void shutdown() {
        threads.forEach(ExecutorService::shutdown);
    }

    /**
     * Waits for the threads to end.
     *
     * @param grace how long
     * @return whether all have ended
     */
    boolean awaitEnd(Duration grace) {
        long end = System.nanoTime() + grace.toNanos();
        boolean interrupted = false;
        boolean all = true;
        for (ExecutorService thread : threads) {
            while (!thread.isTerminated() && System.nanoTime() < end) {
                try {
                    thread.awaitTermination(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true; // memory is freed after this: the ranks must have ended
                }
            }
            all &= thread.isTerminated();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return all;
    }
}
