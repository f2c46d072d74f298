package io.djltp.spark;

import ai.djl.Device;

import io.djltp.job.Job;
import io.djltp.rank.ParallelConfig;

import java.util.List;
import java.util.function.Consumer;

/** The ranks of a task, and the job that they are part of. */
public final class SparkRanks {

    private final TaskPlaces places;
    private final Job job;
    private final int cpus;
    private final List<Device> gpus;
    private final Consumer<String> progress;

    SparkRanks(TaskPlaces places, Job job, int cpus, List<Device> gpus, Consumer<String> progress) {
        this.places = places;
        this.job = job;
        this.cpus = cpus;
        this.gpus = List.copyOf(gpus);
        this.progress = progress;
    }

    /**
     * Returns the job of all tasks.
     *
     * @return the job, or {@code null} if there is one task only
     */
    public Job getJob() {
        return job;
    }

    /**
     * Returns the number of ranks of all tasks.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return getTasks() * getLocalRanks();
    }

    /**
     * Returns the number of ranks of this task, which is that of every other one too.
     *
     * @return the number of ranks
     */
    public int getLocalRanks() {
        return places.ranksPerTask();
    }

    /**
     * Returns the first rank of this task.
     *
     * @return the rank
     */
    public int getFirstRank() {
        return getTask() * getLocalRanks();
    }

    /**
     * Returns the number of this task.
     *
     * @return the number, from 0
     */
    public int getTask() {
        return places.task();
    }

    /**
     * Returns the number of tasks.
     *
     * @return the number of tasks
     */
    public int getTasks() {
        return places.all().size();
    }

    /**
     * Returns how many threads a rank may use: its part of the cores that Spark gave the task
     * ({@code spark.task.cpus}).
     *
     * @return the number of threads
     */
    public int getThreadsPerRank() {
        return Math.max(1, cpus / getLocalRanks());
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
     * Returns the configuration of a trainer with these ranks: the job, the threads and the devices
     * are set. The mode, or a mesh, is the caller's to set.
     *
     * @return a builder
     */
    public ParallelConfig.Builder config() {
        ParallelConfig.Builder builder =
                ParallelConfig.builder()
                        .setRanks(getRanks())
                        .optThreadsPerRank(getThreadsPerRank());
        if (job != null) {
            builder.optJob(job);
        }
        if (!gpus.isEmpty()) {
            builder.optDevices(gpus);
        }
        return builder;
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

    /**
     * Says where a task runs, for messages.
     *
     * @param task the number of the task
     * @return its ranks, its executor and the host
     */
    public String describe(int task) {
        return places.describe(task);
    }
}
