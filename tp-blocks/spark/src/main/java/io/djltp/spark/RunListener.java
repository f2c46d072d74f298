package io.djltp.spark;

import org.apache.spark.ExceptionFailure;
import org.apache.spark.ExecutorLostFailure;
import org.apache.spark.FetchFailed;
import org.apache.spark.TaskEndReason;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Hears at the driver what the tasks of a run tell, and how they end. */
final class RunListener extends SparkListener {

    /** The local property that tells a run's job from others. */
    static final String PROPERTY = "io.djltp.spark.run";

    private static final Logger logger = LoggerFactory.getLogger(TensorParallelSpark.class);

    private final String run;
    private final long progress;
    private final Map<Long, Integer> tasks = new HashMap<>(); // partitions by the ids of tasks
    private final Set<Long> atWork = new HashSet<>(); // tasks
    private final Set<String> executors = new HashSet<>();
    private final Set<Integer> stages = new HashSet<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private int job = -1;
    private int rankStage = -1; // that of the ranks: the stages before it bring them their rows
    private boolean ranksBegan;
    private String last = "";
    private RunFailure failure;
    private boolean executorLost;

    /**
     * Creates a listener.
     *
     * @param run the name of the run
     * @param progress the id of the accumulator of its progress
     */
    RunListener(String run, long progress) {
        this.run = run;
        this.progress = progress;
    }

    String run() {
        return run;
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onJobStart(SparkListenerJobStart event) {
        Properties properties = event.properties();
        if (properties != null && run.equals(properties.getProperty(PROPERTY))) {
            job = event.jobId();
            CollectionConverters.asJava(event.stageIds())
                    .forEach(stage -> stages.add((Integer) stage));
            rankStage = Collections.max(stages); // Spark numbers a stage after those before it
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
            tasks.put(event.taskInfo().taskId(), event.taskInfo().index());
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
        CollectionConverters.asJava(event.accumUpdates())
                .forEach(
                        update -> {
                            Integer partition = tasks.get((Long) update._1());
                            if (partition != null && partition == 0) {
                                CollectionConverters.asJava(update._4()).forEach(this::log);
                            }
                        });
    }

    private void log(AccumulableInfo told) {
        Option<Object> value = told.update();
        if (told.id() == progress && value.isDefined() && !last.equals(value.get().toString())) {
            last = value.get().toString();
            logger.info("{}", last);
        }
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
        if (!stages.contains(event.stageId())) {
            return;
        }
        TaskInfo task = event.taskInfo();
        if (task != null) {
            atWork.remove(task.taskId());
            notifyAll();
        }
        if (task != null && task.index() == 0) {
            CollectionConverters.asJava(task.accumulables()).forEach(this::log);
        }
        if (ranksBegan && event.stageId() != rankStage) {
            return;
        }
        RunFailure found = failureOf(event.reason(), task);
        if (found != null && (failure == null || !ranksBegan || found.isNearer(failure))) {
            failure = found; // before the ranks, the last one ends the run: others are tried again
        }
    }

    private static RunFailure failureOf(TaskEndReason reason, TaskInfo task) {
        if (reason instanceof ExceptionFailure) {
            ExceptionFailure thrown = (ExceptionFailure) reason;
            Throwable exception = thrown.exception().isDefined() ? thrown.exception().get() : null;
            return RunFailure.of(exception, thrown, task);
        }
        if (reason instanceof ExecutorLostFailure) {
            ExecutorLostFailure lost = (ExecutorLostFailure) reason;
            String why = lost.reason().isDefined() ? lost.reason().get() : "no reason is known";
            return RunFailure.lost(task.index(), lost.execId(), task.host(), why);
        }
        if (reason instanceof FetchFailed) {
            FetchFailed failed = (FetchFailed) reason;
            return RunFailure.unread(task.index(), failed.bmAddress(), failed.message());
        }
        return null; // it succeeded, or was killed because of another
    }

    /** {@inheritDoc} */
    @Override
    public synchronized void onJobEnd(SparkListenerJobEnd event) {
        if (event.jobId() == job) {
            ended.countDown();
            notifyAll();
        }
    }

    /** Returns whether Spark has begun the run, as far as it has told its listeners. */
    synchronized boolean hasBegun() {
        return job >= 0;
    }

    /**
     * Returns what ended the run, once all is heard that there is.
     *
     * @param patience how long to wait for it
     * @return the failure, or {@code null} if no task said anything
     */
    RunFailure awaitFailure(Duration patience) {
        try {
            if (!ended.await(patience.toMillis(), TimeUnit.MILLISECONDS)) {
                logger.debug("Spark has not told the end of the run in {}", patience);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        synchronized (this) {
            return failure;
        }
    }

    /**
     * Returns whether the run failed because an executor was lost, and waits for the end of the
     * other tasks then, which Spark kills. Where tasks have only heard of it from each other,
     * Spark's word is awaited too: before it, the executor counts as one that can be used.
     *
     * @param patience how long to wait
     */
    synchronized boolean awaitLoss(Duration patience) {
        boolean thrown = failure.own() && !failure.lost();
        if (thrown && !(executorLost && ranksBegan)) {
            return false; // it would throw again
        }
        await(() -> executorLost && atWork.isEmpty(), patience);
        return true;
    }

    /**
     * Waits for the end of all tasks of a run that is cancelled, also if this thread is
     * interrupted.
     *
     * @param patience how long to wait
     */
    synchronized void awaitEnd(Duration patience) {
        boolean interrupted = Thread.interrupted();
        await(() -> ended.getCount() == 0 && atWork.isEmpty(), patience);
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void await(BooleanSupplier told, Duration patience) {
        long end = System.nanoTime() + patience.toNanos();
        try {
            for (long left = 1; left > 0 && !told.getAsBoolean(); ) {
                left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                wait(Math.max(1, left));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
