package io.djltp.spark;

import org.apache.spark.ExceptionFailure;
import org.apache.spark.ExecutorLostFailure;
import org.apache.spark.FetchFailed;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkException;
import org.apache.spark.TaskEndReason;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

import java.io.NotSerializableException;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;

/**
 * One attempt to run a barrier stage: Spark's job, and what the driver hears of its tasks.
 *
 * @param <T> the type of the rows
 * @param <R> the type of the result
 */
final class StageAttempt<T, R extends @Nullable Object> extends SparkListener {

    private static final Logger logger = LoggerFactory.getLogger(TensorParallelSpark.class);
    private static final String CANCELLED = "SPARK_JOB_CANCELLED";
    private static final Duration PATIENCE = Duration.ofSeconds(10); // for Spark's news

    /** The local property that tells a run's job from others. */
    private static final String PROPERTY = "io.djltp.spark.run";

    private final RDD<T> rows;
    private final BarrierTask<T, R> task;
    private final SparkContext context;
    private final String run = UUID.randomUUID().toString();

    // what Spark has told, on a thread of its own
    private final Map<Long, Integer> partitions = new HashMap<>(); // by the ids of tasks
    private final Set<Long> atWork = new HashSet<>(); // tasks
    private final Set<String> executors = new HashSet<>();
    private final Set<Object> stages = new HashSet<>();
    private int job = -1;
    private int rankStage = -1; // that of the ranks: the stages before it bring them their rows
    private boolean ranksBegan;
    private boolean ended;
    private boolean executorLost;
    private String progress = "";
    private @Nullable Failure failure;

    StageAttempt(RDD<T> rows, BarrierTask<T, R> task) {
        this.rows = rows;
        this.task = task;
        context = rows.context();
    }

    /**
     * Runs the stage.
     *
     * @return the result of the task with rank 0
     * @throws SparkJobException if the function cannot be sent, a task fails, its executor is lost,
     *     or this thread is interrupted; when no task of the stage is at work any more
     */
    R run() {
        String runBefore = context.getLocalProperty(PROPERTY);
        context.addSparkListener(this);
        context.setLocalProperty(PROPERTY, run);
        try {
            ClassTag<R> tag = ClassTag$.MODULE$.apply(Object.class);
            RDD<R> results = rows.barrier().mapPartitions(task, false, tag);
            return InterruptibleJob.collect(new JavaRDD<>(results, tag)).get(0);
        } catch (SparkJobException e) { // interrupted
            boolean interrupted = Thread.interrupted();
            await(() -> ended && atWork.isEmpty());
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            throw e;
        } catch (Exception e) { // of Scala's, where checked exceptions are not declared
            throw explained(e);
        } finally {
            context.setLocalProperty(PROPERTY, runBefore);
            context.removeSparkListener(this);
        }
    }

    private RuntimeException explained(Exception thrown) {
        if (!hasBegun() && thrown.getCause() instanceof NotSerializableException cause) {
            String found = String.valueOf(cause.getMessage()).lines().findFirst().orElse("");
            return new SparkJobException(
                    "The function cannot be sent to the executors: it uses an object of "
                            + found
                            + " from outside of it, which is not serializable. Make the object in"
                            + " the function, or its class Serializable",
                    cause);
        }
        Failure known = awaitFailure();
        if (known == null) {
            return thrown instanceof RuntimeException e && !(thrown instanceof SparkException)
                    ? e
                    : new SparkJobException(String.valueOf(thrown.getMessage()), thrown);
        }
        boolean cancelled =
                thrown instanceof SparkException e && CANCELLED.equals(e.getCondition());
        return new SparkJobException(
                known.message(),
                known.cause() == null ? thrown : known.cause(),
                !cancelled && awaitLoss(known));
    }

    /** Returns whether Spark has begun the job: of one that it refuses it tells nothing. */
    private boolean hasBegun() {
        try {
            context.listenerBus().waitUntilEmpty(PATIENCE.toMillis());
        } catch (TimeoutException e) {
            return true; // for all that is known
        }
        synchronized (this) {
            return job >= 0;
        }
    }

    /** Returns what ended the run, once all is heard that there is, or nothing. */
    private synchronized @Nullable Failure awaitFailure() {
        if (job >= 0) {
            await(() -> ended);
        }
        return failure;
    }

    /**
     * Returns whether the run failed because an executor was lost, and waits for the end of the
     * other tasks then, which Spark kills. Where tasks have only heard of it from each other,
     * Spark's word is awaited too: before it, the executor counts as one that can be used.
     */
    private synchronized boolean awaitLoss(Failure known) {
        Failure last = failure == null ? known : failure; // null: a later stage has begun meanwhile
        boolean thrown = last.own() && !last.lost();
        if (thrown && !(executorLost && ranksBegan)) {
            return false; // it would throw again
        }
        await(() -> executorLost && atWork.isEmpty());
        return true;
    }

    private synchronized void await(BooleanSupplier told) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        try {
            for (long left = 1; left > 0 && !told.getAsBoolean(); ) {
                left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                wait(Math.max(1, left));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onJobStart(SparkListenerJobStart event) {
        if (event.properties() != null && run.equals(event.properties().getProperty(PROPERTY))) {
            job = event.jobId();
            stages.addAll(CollectionConverters.asJava(event.stageIds()));
            // Spark numbers a stage after those before it
            rankStage = stages.stream().mapToInt(Integer.class::cast).max().orElseThrow();
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onTaskStart(SparkListenerTaskStart event) {
        if (event.stageId() == rankStage && !ranksBegan) {
            ranksBegan = true;
            failure = null; // Spark has made good what failed in the stages before
            executorLost = false;
        }
        if (stages.contains(event.stageId())) {
            partitions.put(event.taskInfo().taskId(), event.taskInfo().index());
            atWork.add(event.taskInfo().taskId());
            executors.add(event.taskInfo().executorId());
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onExecutorRemoved(SparkListenerExecutorRemoved event) {
        executorLost |= executors.contains(event.executorId());
        notifyAll();
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onExecutorMetricsUpdate(SparkListenerExecutorMetricsUpdate event) {
        CollectionConverters.asJava(event.accumUpdates()).stream()
                .filter(update -> partitions.getOrDefault((Long) update._1(), -1) == 0)
                .forEach(update -> CollectionConverters.asJava(update._4()).forEach(this::log));
    }

    private void log(AccumulableInfo told) {
        if (told.id() == task.progress().id() && told.update().isDefined()) {
            String text = told.update().get().toString();
            if (!text.equals(progress)) {
                progress = text;
                logger.info("{}", text);
            }
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
        if (!stages.contains(event.stageId()) || event.taskInfo() == null) {
            return;
        }
        TaskInfo info = event.taskInfo();
        atWork.remove(info.taskId());
        notifyAll();
        if (info.index() == 0) {
            CollectionConverters.asJava(info.accumulables()).forEach(this::log);
        }
        Failure found = Failure.of(event.reason(), info);
        if (found != null
                && (!ranksBegan || event.stageId() == rankStage)
                && (failure == null || !ranksBegan || found.own() && !failure.own())) {
            failure = found; // before the ranks, the last one ends the run: others are tried again
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onJobEnd(SparkListenerJobEnd event) {
        ended |= event.jobId() == job;
        notifyAll();
    }

    /**
     * Why a run failed, as the driver heard it from one of the tasks.
     *
     * @param message who failed where, and why
     * @param own whether that task itself failed: others only learn of it
     * @param lost whether an executor was lost, and not an exception thrown
     * @param cause what was thrown, or {@code null} if it did not reach the driver
     */
    record Failure(String message, boolean own, boolean lost, @Nullable Throwable cause) {

        private static final String MEMORY =
                ". If its memory was exceeded: the weights are outside of the Java heap, in what"
                        + " spark.executor.memoryOverhead leaves for them";
        private static final String SILENT =
                ". It stood still, or the network is down: Spark waits spark.network.timeout for"
                        + " its heartbeats";

        /** Returns how a task failed, or {@code null} if it succeeded or was killed with others. */
        private static @Nullable Failure of(TaskEndReason reason, TaskInfo task) {
            if (reason instanceof ExceptionFailure thrown) {
                return thrown(thrown, task);
            }
            if (reason instanceof ExecutorLostFailure lost) {
                String why = lost.reason().isDefined() ? lost.reason().get() : "no reason is known";
                return lost(task.index(), lost.execId(), task.host(), why);
            }
            if (reason instanceof FetchFailed failed) {
                Object of = failed.bmAddress();
                String text =
                        "task %d: the rows of %s could not be read: %s"
                                .formatted(
                                        task.index(),
                                        of == null ? "an executor that was lost" : of,
                                        failed.message());
                return new Failure(text, true, true, null);
            }
            return null;
        }

        private static Failure thrown(ExceptionFailure failure, TaskInfo task) {
            Throwable exception =
                    failure.exception().isDefined() ? failure.exception().get() : null;
            if (exception instanceof BarrierTask.TaskException told) {
                return new Failure(
                        String.valueOf(told.getMessage()), told.isOwn(), false, told.thrown());
            }
            String thrown = failure.className();
            if (BarrierTask.TaskException.class.getName().equals(thrown)) {
                // what was thrown is not serializable: only its words have come
                return new Failure(failure.description(), true, false, null);
            }
            String text =
                    NotSerializableException.class.getName().equals(thrown)
                            ? "The result of task %d on executor %s on %s is not serializable: %s"
                            : "task %d: executor %s on %s failed: " + thrown + ": %s";
            return new Failure(
                    text.formatted(
                            task.index(), task.executorId(), task.host(), failure.description()),
                    true,
                    false,
                    exception);
        }

        /** Returns the failure of a task whose executor was lost. */
        static Failure lost(int task, String executor, String host, String why) {
            String hint = why.contains("heartbeat timed out") ? SILENT : MEMORY; // Spark's words
            String message =
                    "task %d: executor %s on %s was lost (%s)%s"
                            .formatted(task, executor, host, why.strip(), hint);
            return new Failure(message, true, true, null);
        }
    }
}
