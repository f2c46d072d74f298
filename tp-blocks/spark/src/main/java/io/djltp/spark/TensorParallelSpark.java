package io.djltp.spark;

import io.djltp.job.JobOptions;

import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.util.Utils;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Runs a job of ranks as a barrier stage of Spark: a process of the job is a task on an executor,
 * and all start together.
 *
 * <pre>{@code
 * byte[] weights =
 *         TensorParallelSpark.run(
 *                 spark,
 *                 4,
 *                 ranks -> {
 *                     ParallelConfig config = ranks.config().setMode(ParallelMode.MIXED).build();
 *                     // new ParallelTrainer(model, trainingConfig, config), as everywhere
 *                     return ranks.getTask() == 0 ? bytes(model) : null;
 *                 });
 * }</pre>
 *
 * <p>The tasks tell each other by {@code BarrierTaskContext.allGather} where they are, and a secret
 * that task 0 draws for each run. It crosses Spark's own connections, which are encrypted if {@code
 * spark.network.crypto.enabled} is set, and is in no log, no page and no event of Spark's.
 *
 * <p>Spark does not start a barrier stage with results again; {@link Builder#optMaxAttempts} does
 * after an executor is lost.
 */
public final class TensorParallelSpark {

    private static final Logger logger = LoggerFactory.getLogger(TensorParallelSpark.class);

    private static final Pattern LOCAL_CLUSTER = Pattern.compile("local-cluster\\[\\s*(\\d+).*");
    private static final String WAITING = "spark.scheduler.maxRegisteredResourcesWaitingTime";
    private static final long SLOTS_INTERVAL = 100; // milliseconds

    private final int ranks;
    private final int ranksPerTask; // 0: by the master
    private final Duration timeout;
    private final int maxAttempts;

    private TensorParallelSpark(Builder builder) {
        ranks = builder.ranks;
        ranksPerTask = builder.ranksPerTask;
        timeout = builder.timeout;
        maxAttempts = builder.maxAttempts;
    }

    /**
     * Runs a job of ranks.
     *
     * @param spark the session
     * @param ranks the number of ranks
     * @param training what each task does
     * @param <R> the type of the result
     * @return the result of the task with rank 0
     * @throws SparkJobException if a task fails, or its executor is lost
     * @throws IllegalStateException if there are fewer slots than tasks
     */
    public static <R extends @Nullable Object> R run(
            SparkSession spark, int ranks, RankTraining<R> training) {
        return builder().setRanks(ranks).build().run(spark.sparkContext(), training);
    }

    /**
     * Runs the job.
     *
     * @param context Spark's context
     * @param training what each task does
     * @param <R> the type of the result
     * @return the result of the task with rank 0
     * @throws SparkJobException if a task fails, or its executor is lost
     * @throws IllegalStateException if there are fewer slots than tasks
     */
    public <R extends @Nullable Object> R run(SparkContext context, RankTraining<R> training) {
        int tasks = tasks(context);
        JavaRDD<Integer> numbers =
                new JavaSparkContext(context)
                        .parallelize(IntStream.range(0, tasks).boxed().toList(), tasks);
        return run(numbers, (own, rows) -> training.call(own));
    }

    /**
     * Runs the job on rows that are already in as many partitions as the job has tasks.
     *
     * @param rows the rows
     * @param function what each task does with its partition
     * @param <T> the type of the rows
     * @param <R> the type of the result
     * @return the result of the task with rank 0
     * @throws SparkJobException if a task fails, or its executor is lost
     * @throws IllegalStateException if there are fewer slots than tasks
     */
    public <T, R extends @Nullable Object> R run(JavaRDD<T> rows, RankFunction<T, R> function) {
        SparkContext context = rows.context();
        int tasks = tasks(context);
        if (rows.getNumPartitions() != tasks) {
            throw new IllegalArgumentException(
                    ("The rows are in %s partitions, and the job has %s tasks:"
                                    + " repartition them into as many")
                            .formatted(rows.getNumPartitions(), tasks));
        }
        BarrierTask.Progress progress = new BarrierTask.Progress();
        context.register(progress, "tensor-parallel progress");
        BarrierTask<T, R> task =
                new BarrierTask<>(function, ranksPerTask(context), timeout, progress);
        List<SparkJobException> lost = new ArrayList<>(); // attempts that an executor ended
        while (true) {
            try {
                checkSlots(context, tasks);
                return new StageAttempt<>(rows.rdd(), task).run();
            } catch (SparkJobException e) {
                if (!e.isExecutorLost() || lost.size() + 1 >= maxAttempts) {
                    throw withSuppressed(e, lost);
                }
                lost.add(e);
                logger.warn(
                        "Attempt {} of {} failed: {}", lost.size(), maxAttempts, e.getMessage());
            } catch (IllegalStateException e) {
                if (lost.isEmpty()) {
                    throw e;
                }
                String text =
                        "Attempt %d of %d could not begin: %s; it was to follow this one: %s"
                                .formatted(
                                        lost.size() + 1,
                                        maxAttempts,
                                        e.getMessage(),
                                        lost.get(lost.size() - 1).getMessage());
                throw withSuppressed(new SparkJobException(text, e, true), lost);
            }
        }
    }

    private static SparkJobException withSuppressed(
            SparkJobException e, List<SparkJobException> lost) {
        lost.forEach(e::addSuppressed);
        return e;
    }

    /**
     * Checks that the cluster can run the tasks at the same time, waiting for executors that are
     * still to come: where there are fewer slots, Spark asks again for ten minutes before it gives
     * up.
     */
    private void checkSlots(SparkContext context, int tasks) {
        long patience = context.conf().getTimeAsSeconds(WAITING, "30s");
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(patience);
        boolean complete = isComplete(context); // asked first: of one that comes then, slots count
        int slots = slots(context);
        while (slots < tasks && !complete && System.nanoTime() < end) {
            try {
                Thread.sleep(SLOTS_INTERVAL);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new SparkJobException("Interrupted while waiting for executors", e);
            }
            complete = isComplete(context);
            slots = slots(context);
        }
        if (slots < tasks) {
            String waited = ", after waiting %d s for executors to come (%s)";
            throw new IllegalStateException(
                    ("%d ranks, %d in each task, need %d tasks that run at the same time, and there"
                                    + " are %d slots on %d executors of %s cores (spark.task.cpus"
                                    + " is %s)%s: add executors (--num-executors), ask for fewer"
                                    + " ranks, or for more ranks in each task (optRanksPerTask, or"
                                    + " setRanksPerTask of a classifier)")
                            .formatted(
                                    ranks,
                                    ranks / tasks,
                                    tasks,
                                    slots,
                                    executors(context),
                                    context.conf().get("spark.executor.cores", "all their"),
                                    context.conf().get("spark.task.cpus", "1"),
                                    complete ? "" : waited.formatted(patience, WAITING)));
        }
    }

    /**
     * Asks Spark for what it itself checks before a barrier stage. The call is public in Java, and
     * private to Spark in Scala; what is public everywhere knows less: the status tracker has
     * executors without their cores, and one that was lost until Spark's listeners have heard of
     * it, the default parallelism is never below 2, a listener hears of executors that come after
     * it only, and none of them counts what a task needs of GPUs.
     */
    private static int slots(SparkContext context) {
        return context.maxNumConcurrentTasks(
                context.resourceProfileManager().defaultResourceProfile());
    }

    /** Returns whether all executors have come that were asked for, as far as that is known. */
    private static boolean isComplete(SparkContext context) {
        Matcher localCluster = LOCAL_CLUSTER.matcher(context.master());
        int wanted =
                localCluster.matches()
                        ? Integer.parseInt(localCluster.group(1))
                        : context.conf().getInt("spark.executor.instances", Integer.MAX_VALUE);
        return context.isLocal() || executors(context) >= wanted;
    }

    /** Counts the executors that the slots are of, by a call like that of {@link #slots}. */
    private static int executors(SparkContext context) {
        return context.isLocal() ? 1 : context.getExecutorIds().size(); // in local mode the driver
    }

    /**
     * Returns how many tasks the job has.
     *
     * @param context Spark's context
     * @return the number of tasks
     * @throws IllegalArgumentException if the ranks are no multiple of those of a task, or the
     *     master is {@code local} and they need several tasks
     * @throws IllegalStateException if executors are allocated dynamically
     */
    public int tasks(SparkContext context) {
        if (Utils.isDynamicAllocationEnabled(context.conf())) { // what Spark itself asks, later
            throw new IllegalStateException(
                    "Spark runs no barrier stage, whose tasks begin together, with dynamic"
                            + " allocation: set spark.dynamicAllocation.enabled to false, and the"
                            + " number of executors (--num-executors)");
        }
        return ranks / ranksPerTask(context);
    }

    private int ranksPerTask(SparkContext context) {
        int wanted = ranksPerTask > 0 ? ranksPerTask : context.isLocal() ? ranks : 1;
        if (ranks % wanted != 0) {
            throw new IllegalArgumentException(
                    "%d ranks cannot be shared out to tasks of %d: all have the same number"
                            .formatted(ranks, wanted));
        }
        if (context.isLocal() && wanted < ranks) {
            throw new IllegalArgumentException(
                    ("%d ranks, %d in each task, need %d JVMs, and with the master %s there is one:"
                                    + " leave the ranks of a task out, or set them to %d"
                                    + " (optRanksPerTask, or setRanksPerTask of a classifier)")
                            .formatted(ranks, wanted, ranks / wanted, context.master(), ranks));
        }
        return wanted;
    }

    /**
     * Creates a builder to build a {@code TensorParallelSpark}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link TensorParallelSpark}. */
    public static final class Builder {

        private int ranks;
        private int ranksPerTask;
        private Duration timeout = JobOptions.DEFAULT_TIMEOUT;
        private int maxAttempts = 1;

        private Builder() {}

        /**
         * Sets the number of ranks of the job.
         *
         * @param ranks the number of ranks, 1 or more
         * @return this builder
         */
        public Builder setRanks(int ranks) {
            this.ranks = ranks;
            return this;
        }

        /**
         * Sets how many ranks a task has: threads of its JVM, which share its cores. Default: one,
         * so that there are as many tasks as ranks; on the master {@code local}, where there is one
         * JVM, all, and no other number is possible.
         *
         * @param ranksPerTask the number of ranks, of which that of the job is a multiple
         * @return this builder
         */
        public Builder optRanksPerTask(int ranksPerTask) {
            this.ranksPerTask = ranksPerTask;
            return this;
        }

        /**
         * Sets how long the tasks wait for each other to come. Default: five minutes.
         *
         * @param timeout the time
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets how often the stage may be started. Default: once. After an executor is lost, all
         * tasks begin again, once there are as many slots as before: a training that goes on from
         * its last checkpoint keeps what was done. What a task throws is not tried again, since it
         * would throw it again.
         *
         * <p>Spark's own {@code spark.stage.maxConsecutiveAttempts} and {@code
         * spark.task.maxFailures} do not count here: it never repeats a barrier stage that has
         * results.
         *
         * @param maxAttempts the number of attempts, the first included
         * @return this builder
         */
        public Builder optMaxAttempts(int maxAttempts) {
            this.maxAttempts = maxAttempts;
            return this;
        }

        /**
         * Builds the job.
         *
         * @return the job, which can be run any number of times
         * @throws IllegalArgumentException if there is no rank, or no attempt
         */
        public TensorParallelSpark build() {
            if (ranks < 1 || ranksPerTask < 0) {
                throw new IllegalArgumentException(
                        "A job needs 1 rank or more in each task, not %d, %d in a task"
                                .formatted(ranks, ranksPerTask));
            }
            if (maxAttempts < 1) {
                throw new IllegalArgumentException(
                        "A job needs 1 attempt or more, not " + maxAttempts);
            }
            return new TensorParallelSpark(this);
        }
    }
}
