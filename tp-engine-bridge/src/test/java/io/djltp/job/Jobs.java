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

    /** What one process does, without a result. */
    public interface Deed {
        void run(Job job) throws Exception;
    }

    /** Processes that come to a port that is bound, each at once or when its task says so. */
    static final class Meeting {

        final ServerSocketChannel bound;
        final int port;
        private final int processes;
        private final List<Callable<?>> tasks = new ArrayList<>();

        /** Begins with process 0. */
        Meeting(int processes, JobOptions.Builder options) {
            this(processes, options, bind());
        }

        Meeting(int processes, JobOptions.Builder options, ServerSocketChannel bound) {
            this.processes = processes;
            this.bound = bound;
            port = MasterPort.getPort(bound);
            JobOptions built = options.build();
            tasks.add(() -> Job.join(environment(0, processes, port), built, bound));
        }

        Meeting with(Callable<?> task) {
            tasks.add(task);
            return this;
        }

        Meeting with(int process, JobOptions.Builder options) {
            return after(0, process, options);
        }

        /** Lets a process come after some milliseconds. */
        Meeting after(long millis, int process, JobOptions.Builder options) {
            JobOptions built = options.build();
            return with(
                    () -> {
                        Thread.sleep(millis);
                        return join(process, processes, port, built);
                    });
        }

        List<Object> outcomes() throws Exception {
            return Jobs.outcomes(tasks);
        }

        /** Returns the jobs of all who have joined. */
        List<Job> jobs() throws Exception {
            return results(tasks).stream().map(Job.class::cast).toList();
        }

        /** Returns what all were told, of whom nobody has joined. */
        List<JobFailedException> failures() throws Exception {
            List<Object> outcomes = outcomes();
            outcomes.forEach(it -> Assert.assertTrue(it instanceof JobFailedException, "" + it));
            return outcomes.stream().map(JobFailedException.class::cast).toList();
        }

        /** Checks what all are told. */
        void fails(String pattern) throws Exception {
            failures().forEach(failure -> assertMatches(failure, pattern));
        }
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

    /** Joins all processes, lets each do its part, and closes them. */
    public static <T> List<T> run(int processes, int ranks, Part<T> part) throws Exception {
        return run(processes, options(ranks), part);
    }

    /** Joins all processes, lets each do its part, and closes them. */
    public static <T> List<T> run(int processes, JobOptions.Builder options, Part<T> part)
            throws Exception {
        List<Job> jobs = joinAll(processes, options);
        try {
            return inParallel(jobs, part);
        } finally {
            closeAll(jobs);
        }
    }

    /** Joins all processes, lets each do something, and closes them. */
    public static void each(int processes, int ranks, Deed deed) throws Exception {
        each(processes, options(ranks), deed);
    }

    /** Joins all processes, lets each do something, and closes them. */
    public static void each(int processes, JobOptions.Builder options, Deed deed) throws Exception {
        run(
                processes,
                options,
                job -> {
                    deed.run(job);
                    return null;
                });
    }

    /** Joins all processes of a job. */
    public static List<Job> joinAll(int processes, JobOptions.Builder options) throws Exception {
        Meeting meeting = new Meeting(processes, options);
        for (int i = 1; i < processes; i++) {
            meeting.with(i, options);
        }
        return meeting.jobs();
    }

    public static <T> List<T> inParallel(List<Job> jobs, Part<T> part) throws Exception {
        List<Callable<T>> tasks = new ArrayList<>();
        for (Job job : jobs) {
            tasks.add(() -> part.run(job));
        }
        return results(tasks);
    }

    public static void closeAll(List<Job> jobs) throws Exception {
        results(jobs.stream().map(job -> Executors.callable(job::close)).toList());
    }

    /** Runs tasks at the same time, and returns their results; throws what the first threw. */
    public static <T> List<T> results(List<? extends Callable<? extends T>> tasks)
            throws Exception {
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

    /** Runs tasks at the same time, and returns of each its result or what it threw. */
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

    /** Checks that a task throws, and what it says. */
    public static <E extends Throwable> E assertThrows(
            Class<E> type, String pattern, Assert.ThrowingRunnable task) {
        E failure = Assert.expectThrows(type, task);
        assertMatches(failure, pattern);
        return failure;
    }

    /** Checks that a job fails, and what it says. */
    public static JobFailedException assertFails(String pattern, Assert.ThrowingRunnable task) {
        return assertThrows(JobFailedException.class, pattern, task);
    }

    public static void assertMatches(Throwable failure, String pattern) {
        Assert.assertTrue(failure.getMessage().matches(pattern), failure.getMessage());
    }
}
