package io.djltp.spark;

import ai.djl.Device;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;
import io.djltp.launch.Launcher;
import io.djltp.rank.ParallelConfig;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.resource.ResourceInformation;
import org.jspecify.annotations.Nullable;

import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** The ranks of a task, and the job that they are part of. */
public final class SparkRanks {

    private static final String SEPARATOR = "\t";

    private final int task;
    private final int ranksPerTask;
    private final List<Place> places; // of all tasks
    private final int cpus;
    private final Consumer<String> progress;
    private List<Device> gpus = List.of();
    private @Nullable Job job;

    SparkRanks(
            int task, int ranksPerTask, List<Place> places, int cpus, Consumer<String> progress) {
        this.task = task;
        this.ranksPerTask = ranksPerTask;
        this.places = places;
        this.cpus = cpus;
        this.progress = progress;
    }

    /**
     * Where a task runs.
     *
     * @param host the host that Spark knows the executor by
     * @param executor the executor's id
     * @param pid its process id
     * @param port of task 0, the port at which the job is joined; else 0
     * @param secret of task 0, the job's secret; else empty
     */
    record Place(String host, String executor, long pid, int port, String secret) {

        private String encode() {
            return String.join(SEPARATOR, host, executor, "" + pid, "" + port, secret);
        }

        private static Place decode(String text) {
            String[] parts = text.split(SEPARATOR, -1);
            long pid = Long.parseLong(parts[2]);
            return new Place(parts[0], parts[1], pid, Integer.parseInt(parts[3]), parts[4]);
        }

        /** Says nothing of the secret, which would end in a log. */
        @Override
        public String toString() {
            return "executor " + executor + " on " + host + ", pid " + pid;
        }
    }

    /** Tells the other tasks where this one is, and learns where they are. */
    static SparkRanks meet(
            BarrierTaskContext context,
            int ranksPerTask,
            int port,
            String secret,
            Consumer<String> progress) {
        int task = context.partitionId();
        String executor = SparkEnv.get().executorId();
        long pid = ProcessHandle.current().pid();
        String own = new Place(hostOf(context, task), executor, pid, port, secret).encode();
        List<Place> all = Arrays.stream(context.allGather(own)).map(Place::decode).toList();
        SparkRanks ranks = new SparkRanks(task, ranksPerTask, all, context.cpus(), progress);
        ranks.gpus = gpus(context.resourcesJMap().get("gpu"), ranksPerTask);
        return ranks;
    }

    /** Returns the host of a task, as Spark's own services reach it. */
    static String hostOf(BarrierTaskContext context, int task) {
        String address = context.getTaskInfos()[task].address();
        int colon = address.lastIndexOf(':');
        boolean withPort = colon > 0 && (address.indexOf(':') == colon || address.contains("]:"));
        return withPort ? address.substring(0, colon) : address;
    }

    private static List<Device> gpus(@Nullable ResourceInformation found, int ranks) {
        if (found == null) {
            return List.of();
        }
        String[] addresses = found.addresses();
        if (addresses.length < ranks) {
            throw new IllegalStateException(
                    ("The task has %s ranks and the GPUs %s: set"
                                    + " spark.task.resource.gpu.amount to %s")
                            .formatted(ranks, Arrays.toString(addresses), ranks));
        }
        return Arrays.stream(addresses)
                .limit(ranks)
                .map(address -> Device.gpu(Integer.parseInt(address)))
                .toList();
    }

    /** Joins the job; returns {@code null} if there is one task only. */
    @Nullable Job join(@Nullable ServerSocketChannel bound, Duration timeout) {
        if (getTasks() == 1) {
            return null;
        }
        checkExecutors();
        Place first = places.get(0);
        int before =
                (int)
                        places.subList(0, task).stream()
                                .filter(each -> each.host().equals(places.get(task).host()))
                                .count();
        LaunchEnvironment environment =
                new LaunchEnvironment(
                        "Spark", task, getTasks(), before, first.host(), first.port());
        JobOptions options =
                JobOptions.builder()
                        .setRanks(getRanks())
                        .optSecret(HexFormat.of().parseHex(first.secret()))
                        .optTimeout(timeout)
                        .build();
        job = Launcher.join(environment, options, bound);
        return job;
    }

    /**
     * Checks that no two tasks are in one JVM: the ranks of a JVM are threads of one process, which
     * share its generators of random numbers.
     */
    private void checkExecutors() {
        Map<String, List<Integer>> tasks =
                IntStream.range(0, getTasks())
                        .boxed()
                        .collect(
                                Collectors.groupingBy(
                                        i ->
                                                places.get(i).host()
                                                        + SEPARATOR
                                                        + places.get(i).pid()));
        for (List<Integer> together : tasks.values()) {
            if (together.size() > 1) {
                throw new IllegalStateException(
                        ("Tasks %s run in one JVM, %s, where ranks belong into one task: set"
                                        + " spark.task.cpus to spark.executor.cores so that an"
                                        + " executor has one task, and optRanksPerTask, or"
                                        + " setRanksPerTask of a classifier, to the ranks that"
                                        + " it shall have")
                                .formatted(together, places.get(together.get(0))));
            }
        }
    }

    /**
     * Returns the job of all tasks.
     *
     * @return the job, or {@code null} if there is one task only
     */
    public @Nullable Job getJob() {
        return job;
    }

    /**
     * Returns the number of ranks of all tasks.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return getTasks() * ranksPerTask;
    }

    /**
     * Returns the number of ranks of this task, which is that of every other one too.
     *
     * @return the number of ranks
     */
    public int getLocalRanks() {
        return ranksPerTask;
    }

    /**
     * Returns the first rank of this task.
     *
     * @return the rank
     */
    public int getFirstRank() {
        return task * ranksPerTask;
    }

    /**
     * Returns the number of this task.
     *
     * @return the number, from 0
     */
    public int getTask() {
        return task;
    }

    /**
     * Returns the number of tasks.
     *
     * @return the number of tasks
     */
    public int getTasks() {
        return places.size();
    }

    /**
     * Returns the GPUs that Spark gave the task ({@code spark.task.resource.gpu.amount}).
     *
     * @return one GPU for each rank of the task, or an empty list if they compute on the CPU
     */
    public List<Device> getGpus() {
        return gpus;
    }

    /**
     * Returns the configuration of a trainer with these ranks: the job, the devices and the threads
     * are set, of which a rank has its part of the cores that Spark gave the task ({@code
     * spark.task.cpus}). The mode, or a mesh, is the caller's to set.
     *
     * @return a builder
     */
    public ParallelConfig.Builder config() {
        ParallelConfig.Builder builder =
                ParallelConfig.builder()
                        .setRanks(getRanks())
                        .optThreadsPerRank(Math.max(1, cpus / ranksPerTask))
                        .optJob(job);
        return gpus.isEmpty() ? builder : builder.optDevices(gpus);
    }

    /**
     * Tells the driver how far the task is. It logs what the task with rank 0 tells, and Spark's
     * page of the stage shows it. It travels with Spark's heartbeats ({@code
     * spark.executor.heartbeatInterval}, 10 seconds): what was told in between is overwritten.
     *
     * @param text a few words
     */
    public void report(String text) {
        progress.accept(text);
    }

    /** Says where a task runs: its ranks, its executor and the host. */
    String describe(int other) {
        int first = other * ranksPerTask;
        int last = first + ranksPerTask - 1;
        String ranks = first == last ? "rank " + first : "ranks " + first + "-" + last;
        return "%s (task %d of %d, %s)".formatted(ranks, other, getTasks(), places.get(other));
    }
}
