package io.djltp.head;

import ai.djl.engine.EngineException;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.OpenMpTeam;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.IntConsumer;

/**
 * Threads that work side by side on parts of a rank's classes, each of them with operations of one
 * thread: those that libtorch has anyway, see {@link OpenMpTeam}, or others. That is faster than
 * operations of several threads one after another: no operation waits for the slowest thread, and
 * what one operation leaves in the cache of a core the next one finds there.
 */
final class WorkerThreads implements AutoCloseable {

    private final int count;
    private final OpenMpTeam team; // or null
    private final List<ExecutorService> threads = new ArrayList<>(); // if there is no team

    /**
     * Prepares the threads of the calling thread's operations, or creates some.
     *
     * @param count their number; a single one is the calling thread with all of its threads
     */
    WorkerThreads(int count) {
        this(count, count > 1 ? OpenMpTeam.create().orElse(null) : null);
    }

    /**
     * Uses a team.
     *
     * @param count the number of threads
     * @param team the team, or {@code null} to create threads
     */
    WorkerThreads(int count, OpenMpTeam team) {
        this.count = count;
        this.team = team;
        if (count > 1 && team == null) {
            for (int i = 0; i < count; i++) {
                threads.add(newThread(Thread.currentThread().getName() + "-worker-" + i));
            }
            run(count, worker -> Autograd.setThreads(1));
        }
    }

    private static ExecutorService newThread(String name) {
        return Executors.newSingleThreadExecutor(
                task -> {
                    Thread thread = new Thread(task, name);
                    thread.setDaemon(true);
                    return thread;
                });
    }

    /**
     * Runs a task in some threads and waits for all of them, also when one has failed: the others
     * work on memory that the caller may free.
     *
     * @param count the number of threads, from the first
     * @param task the task, given the number of the thread
     */
    void run(int count, IntConsumer task) {
        if (count == 1) {
            task.accept(0); // alone, with all threads of the caller
            return;
        }
        if (team != null) {
            team.run(count, task);
            return;
        }
        List<CompletableFuture<Throwable>> results = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            int worker = i;
            results.add(
                    CompletableFuture.runAsync(() -> task.accept(worker), threads.get(i))
                            .handle((nothing, e) -> e == null ? null : e.getCause()));
        }
        List<Throwable> failures =
                results.stream().map(CompletableFuture::join).filter(Objects::nonNull).toList();
        if (!failures.isEmpty()) {
            RuntimeException first =
                    failures.get(0) instanceof RuntimeException failure
                            ? failure
                            : new EngineException("A worker thread has failed", failures.get(0));
            failures.stream().skip(1).filter(e -> e != first).forEach(first::addSuppressed);
            throw first;
        }
    }

    int count() {
        return count;
    }

    /** Ends the threads. */
    @Override
    public void close() {
        threads.forEach(ExecutorService::shutdown);
        if (team != null) {
            team.close();
        }
    }
}
