package io.djltp.internal.head;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.OpenMpTeam;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

/**
 * Threads that work side by side on parts of a rank's classes, each of them with operations of one
 * thread: those that libtorch has anyway, see {@link OpenMpTeam}, or others. That is faster than
 * operations of several threads one after another: no operation waits for the slowest thread, and
 * what one operation leaves in the cache of a core the next one finds there.
 */
final class WorkerThreads implements AutoCloseable {

    private final int count;
    private final @Nullable OpenMpTeam team;
    private final @Nullable ExecutorService threads; // if there is no team

    /**
     * Uses a team.
     *
     * @param count the number of threads; a single one is the calling thread with all of its
     *     threads
     * @param team the team, or {@code null} to create threads
     */
    WorkerThreads(int count, @Nullable OpenMpTeam team) {
        this.count = count;
        this.team = team;
        threads =
                count > 1 && team == null
                        ? Executors.newFixedThreadPool(count, WorkerThreads::newThread)
                        : null;
    }

    private static Thread newThread(Runnable tasks) {
        Runnable inOneThread =
                () -> {
                    Autograd.setThreads(1);
                    tasks.run();
                };
        Thread thread = new Thread(inOneThread, "head-worker");
        thread.setDaemon(true);
        return thread;
    }

    /**
     * Runs a task in some threads and waits for all of them, also when one has failed: the others
     * work on memory that the caller may free.
     *
     * @param tasks the number of threads, from the first
     * @param task the task, given the number of the thread
     */
    void run(int tasks, IntConsumer task) {
        if (tasks == 1) {
            task.accept(0); // alone, with all threads of the caller
        } else if (team != null) {
            team.run(tasks, task);
        } else {
            runInThreads(tasks, task);
        }
    }

    private void runInThreads(int tasks, IntConsumer task) {
        List<CompletableFuture<Throwable>> runs =
                IntStream.range(0, tasks)
                        .mapToObj(i -> CompletableFuture.runAsync(() -> task.accept(i), threads))
                        .map(run -> run.handle((nothing, e) -> e == null ? null : e.getCause()))
                        .toList();
        List<Throwable> failures =
                runs.stream().map(CompletableFuture::join).filter(Objects::nonNull).toList();
        if (!failures.isEmpty()) {
            Throwable first = failures.get(0);
            failures.stream().skip(1).filter(e -> e != first).forEach(first::addSuppressed);
            if (first instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) first;
        }
    }

    int count() {
        return count;
    }

    /** Ends the threads. */
    @Override
    public void close() {
        if (threads != null) {
            threads.shutdown();
        }
        if (team != null) {
            team.close();
        }
    }
}
