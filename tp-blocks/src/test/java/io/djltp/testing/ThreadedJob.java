package io.djltp.testing;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.function.Function;

/** A job of two processes, which are threads of this one. */
public final class ThreadedJob {

    private ThreadedJob() {}

    /**
     * Does something in both processes, with a rank each.
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
     * Does something in both processes.
     *
     * @param ranks the ranks of both together, an even number
     * @param part what each of them does
     * @param <T> its result
     * @return the results of process 0 and 1
     */
    public static <T> List<T> run(int ranks, Function<Job, T> part)
            throws IOException, InterruptedException, ExecutionException {
        int port;
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = socket.getLocalPort();
        }
        Executor threads = task -> new Thread(task, "process of a job").start();
        CompletableFuture<T> first =
                CompletableFuture.supplyAsync(() -> run(0, port, ranks, part), threads);
        CompletableFuture<T> other =
                CompletableFuture.supplyAsync(() -> run(1, port, ranks, part), threads);
        return List.of(first.get(), other.get());
    }

    private static <T> T run(int process, int port, int ranks, Function<Job, T> part) {
        Map<String, String> environment =
                Map.of(
                        "RANK",
                        "" + process,
                        "WORLD_SIZE",
                        "2",
                        "MASTER_ADDR",
                        "127.0.0.1",
                        "MASTER_PORT",
                        "" + port);
        try (Job job = Launcher.join(environment, ranks, Duration.ofSeconds(30))) {
            return part.apply(job);
        }
    }
}
