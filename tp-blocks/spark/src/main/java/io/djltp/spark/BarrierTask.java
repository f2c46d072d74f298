package io.djltp.spark;

import ai.djl.Device;
import ai.djl.util.Utils;

import io.djltp.environment.JobSecret;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.launch.Launcher;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.resource.ResourceInformation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

import java.io.Serializable;
import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;

/** A task of a barrier stage: joins the job, and runs the function. */
final class BarrierTask<T, R> extends AbstractFunction1<Iterator<T>, Iterator<R>>
        implements Serializable {

    private static final long serialVersionUID = 1L;

    private static final Logger logger = LoggerFactory.getLogger(TensorParallelSpark.class);

    private static final String CACHE = "org.bytedeco.javacpp.cachedir";
    private static final long HEAD_START = 1000; // milliseconds

    private final RankFunction<T, R> function;
    private final int ranksPerTask;
    private final Duration timeout;
    private final Progress progress;

    BarrierTask(
            RankFunction<T, R> function, int ranksPerTask, Duration timeout, Progress progress) {
        this.function = function;
        this.ranksPerTask = ranksPerTask;
        this.timeout = timeout;
        this.progress = progress;
    }

    Progress progress() {
        return progress;
    }

    /** {@inheritDoc} */
    @Override
    public Iterator<R> apply(Iterator<T> rows) {
        BarrierTaskContext context = BarrierTaskContext.get();
        // JVMs of a machine that share one cache, but not DJL's, overwrite each other's libraries
        if (System.getProperty(CACHE) == null) {
            System.setProperty(CACHE, Utils.getCacheDir().resolve("javacpp").toString());
        }
        R result = join(context, CollectionConverters.asJava(rows));
        List<R> one = context.partitionId() == 0 ? Arrays.asList(result) : List.of();
        return CollectionConverters.asScala(one.iterator());
    }

    private R join(BarrierTaskContext context, java.util.Iterator<T> rows) {
        int tasks = context.getTaskInfos().length;
        boolean listens = context.partitionId() == 0 && tasks > 1;
        ServerSocketChannel bound =
                listens ? MasterPort.bindEphemeral(TaskPlaces.hostOf(context, 0)) : null;
        TaskPlaces places =
                TaskPlaces.exchange(
                        context,
                        ranksPerTask,
                        bound == null ? 0 : MasterPort.getPort(bound),
                        listens ? HexFormat.of().formatHex(JobSecret.draw()) : "");
        try {
            if (tasks == 1) {
                return run(context, places, null, rows);
            }
            places.checkExecutors();
            try (Job job = joinJob(places, bound)) {
                return run(context, places, job, rows);
            }
        } catch (Exception | Error e) {
            if (RankTaskException.endsExecutors(e)) {
                logger.error("The task failed", e); // Spark's log does not have it
            }
            throw told(explained(places, e));
        }
    }

    private Job joinJob(TaskPlaces places, ServerSocketChannel bound) {
        int tasks = places.all().size();
        TaskPlaces.Place first = places.all().get(0);
        LaunchEnvironment environment =
                new LaunchEnvironment(
                        "Spark",
                        places.task(),
                        tasks,
                        places.localTask(),
                        first.host(),
                        first.port());
        JobOptions options =
                JobOptions.builder()
                        .setRanks(tasks * ranksPerTask)
                        .optSecret(HexFormat.of().parseHex(first.secret()))
                        .optTimeout(timeout)
                        .build();
        return Launcher.join(environment, options, bound);
    }

    /** Lets the task that failed be the first to say so: it knows more. */
    private static RankTaskException told(RankTaskException failure) {
        if (!failure.isOwn()) {
            try {
                Thread.sleep(HEAD_START);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt(); // Spark knows, and kills this task
            }
        }
        return failure;
    }

    @SuppressWarnings("try") // a watch is used by being open
    private R run(
            BarrierTaskContext context, TaskPlaces places, Job job, java.util.Iterator<T> rows)
            throws Exception {
        SparkRanks ranks =
                new SparkRanks(
                        places,
                        job,
                        context.cpus(),
                        gpus(context, ranksPerTask),
                        text -> progress.add(text));
        try (KillWatch watch = KillWatch.begin(context, job)) {
            R result = function.call(ranks, rows);
            if (job != null && places.task() > 0) {
                job.close(); // who still waits for this task learns that it has ended
            }
            // who is done waits: the job of process 0 is what tells the others of a failure
            context.barrier();
            return result;
        } catch (Exception | Error e) {
            if (job != null) {
                job.fail(-1, e);
            }
            throw e;
        }
    }

    /** Says which ranks failed where: these, or those of another task that these learned of. */
    private static RankTaskException explained(TaskPlaces places, Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof JobFailedException) {
                int process = ((JobFailedException) cause).getProcess();
                if (process >= 0 && process != places.task()) {
                    return new RankTaskException(
                            places.describe(process) + ": " + cause.getMessage(), false, failure);
                }
            }
        }
        return new RankTaskException(
                places.describe(places.task()) + " failed: " + failure, true, failure);
    }

    private static List<Device> gpus(BarrierTaskContext context, int ranks) {
        ResourceInformation found = context.resourcesJMap().get("gpu");
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
}
