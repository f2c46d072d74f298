package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;

import org.testng.Assert;

import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Runs the processes of a job as threads of this JVM. */
public final class Jobs {

    public static final String LOOPBACK = "127.0.0.1";

    private Jobs() {}

    /** What one process does. */
    public interface Part<T> {
        T run(Job job) throws Exception;
    }

    public static LaunchEnvironment environment(int process, int processes, int port) {
        return new LaunchEnvironment("test", process, processes, process, LOOPBACK, port);
    }

    public static JobOptions.Builder options(int ranks) {
        return JobOptions.builder()
                .setRanks(ranks)
                .optEnvironment(Map.of())
                .optVersion("1.0")
                .optHeartbeatTimeout(Duration.ofSeconds(5))
                .optTimeout(Duration.ofSeconds(10));
    }

    public static Job join(int process, int processes, int port, JobOptions options) {
        return Job.join(environment(process, processes, port), options);
    }

    public static ServerSocketChannel bind() {
        return MasterPort.bindEphemeral(LOOPBACK);
    }

    /** Returns a port that is free now. */
    public static int freePort() throws Exception {
        try (ServerSocketChannel channel = bind()) {
            return MasterPort.getPort(channel);
        }
    }

    /** Joins all processes, lets each do its part, and closes them. */
    public static <T> List<T> run(int processes, int ranks, Part<T> part) throws Exception {
        return run(processes, options(ranks).build(), part);
    }

    public static <T> List<T> run(int processes, JobOptions options, Part<T> part)
            throws Exception {
        List<Job> jobs = joinAll(processes, options);
        try {
            return inParallel(jobs, part);
        } finally {
            closeAll(jobs);
        }
    }

    public static List<Job> joinAll(int processes, JobOptions options) throws Exception {
        ServerSocketChannel bound = bind();
        int port = MasterPort.getPort(bound);
        List<Callable<Job>> tasks = new ArrayList<>();
        for (int i = 0; i < processes; i++) {
            int process = i;
            tasks.add(
                    () ->
                            Job.join(
                                    environment(process, processes, port),
                                    options,
                                    process == 0 ? bound : null));
        }
        return results(tasks);
    }

    public static <T> List<T> inParallel(List<Job> jobs, Part<T> part) throws Exception {
        List<Callable<T>> tasks = new ArrayList<>();
        for (Job job : jobs) {
            tasks.add(() -> part.run(job));
        }
        return results(tasks);
    }

    public static void closeAll(List<Job> jobs) throws Exception {
        inParallel(
                jobs,
                job -> {
                    job.close();
                    return null;
                });
    }

    /** Runs tasks at the same time, and throws what one of them throws. */
    public static <T> List<T> results(List<Callable<T>> tasks) throws Exception {
        List<T> values = new ArrayList<>();
        for (Object outcome : outcomes(tasks)) {
            if (outcome instanceof Exception e) {
                throw e;
            }
            if (outcome instanceof Error e) {
                throw e;
            }
            @SuppressWarnings("unchecked")
            T value = (T) outcome;
            values.add(value);
        }
        return values;
    }

    /** Runs tasks at the same time, and returns the result of each or what it threw. */
    public static List<Object> outcomes(List<? extends Callable<?>> tasks) throws Exception {
        ExecutorService executor = Executors.newCachedThreadPool();
        try {
            List<Future<?>> futures = new ArrayList<>();
            tasks.forEach(task -> futures.add(executor.submit(task)));
            List<Object> outcomes = new ArrayList<>();
            for (Future<?> future : futures) {
                try {
                    outcomes.add(future.get());
                } catch (ExecutionException e) {
                    outcomes.add(e.getCause());
                }
            }
            return outcomes;
        } finally {
            executor.shutdownNow();
        }
    }

    /** Lets all processes come with options of their own, and returns what each threw. */
    public static List<JobFailedException> failures(List<Callable<Job>> tasks) throws Exception {
        List<JobFailedException> failures = new ArrayList<>();
        for (Object outcome : outcomes(tasks)) {
            Assert.assertTrue(outcome instanceof JobFailedException, "" + outcome);
            failures.add((JobFailedException) outcome);
        }
        return failures;
    }

    public static void assertMatches(Throwable failure, String pattern) {
        Assert.assertTrue(failure.getMessage().matches(pattern), failure.getMessage());
    }
}
