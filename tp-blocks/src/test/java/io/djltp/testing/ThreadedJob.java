package io.djltp.testing;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.function.Function;

/** A job of processes that are threads of this one. */
public final class ThreadedJob {

    private ThreadedJob() {}

    /**
     * Does something in two processes, with a rank each.
     *
     * @param part what each of them does
     * @param <T> its result
     * @return the results of process 0 and 1
     */
    public static <T> List<T> run(Function<Job, T> part)
            throws IOException, InterruptedException, ExecutionException {
        return run(2, part);
    }

    /**
     * Does something in two processes.
     *
     * @param ranks the ranks of both together, an even number
     * @param part what each of them does
     * @param <T> its result
     * @return the results of process 0 and 1
     */
    public static <T> List<T> run(int ranks, Function<Job, T> part)
            throws IOException, InterruptedException, ExecutionException {
        return run(2, ranks, part);
    }

    /**
     * Does something in all processes.
     *
     * @param processes how many
     * @param ranks the ranks of all together, a multiple of the processes
     * @param part what each of them does
     * @param <T> its result
     * @return the results, in the order of the processes
     */
    public static <T> List<T> run(int processes, int ranks, Function<Job, T> part)
            throws IOException, InterruptedException, ExecutionException {
        int port = FreePort.find();
        Executor threads = task -> new Thread(task, "process of a job").start();
        List<CompletableFuture<T>> running = new ArrayList<>();
        for (int i = 0; i < processes; i++) {
            Map<String, String> environment =
                    Map.of(
                            "RANK", "" + i,
                            "WORLD_SIZE", "" + processes,
                            "MASTER_ADDR", "127.0.0.1",
                            "MASTER_PORT", "" + port);
            running.add(
                    CompletableFuture.supplyAsync(() -> join(environment, ranks, part), threads));
        }
        List<T> results = new ArrayList<>();
        for (CompletableFuture<T> process : running) {
            results.add(process.get());
        }
        return results;
    }

    private static <T> T join(Map<String, String> environment, int ranks, Function<Job, T> part) {
        try (Job job = Launcher.join(environment, ranks, Duration.ofSeconds(30))) {
            return part.apply(job);
        }
    }
}
