package io.djltp.spark;

import ai.djl.util.Utils;

import io.djltp.environment.MasterPort;
import io.djltp.internal.environment.JobSecret;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;

import org.apache.spark.BarrierTaskContext;
import org.apache.spark.util.AccumulatorV2;
import org.jspecify.annotations.Nullable;
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
import java.util.stream.Stream;

/** A task of a barrier stage: joins the job, and runs the function. */
final class BarrierTask<T, R extends @Nullable Object>
        extends AbstractFunction1<Iterator<T>, Iterator<R>> implements Serializable {

    private static final long serialVersionUID = 1L;
    private static final Logger logger = LoggerFactory.getLogger(TensorParallelSpark.class);
    private static final String CACHE = "org.bytedeco.javacpp.cachedir";
    private static final long HEAD_START = 1000; // milliseconds
    private static final long KILL_INTERVAL = 200; // milliseconds

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
        boolean first = context.partitionId() == 0;
        boolean listens = first && context.getTaskInfos().length > 1;
        ServerSocketChannel bound =
                listens ? MasterPort.bindEphemeral(SparkRanks.hostOf(context, 0)) : null;
        SparkRanks ranks =
                SparkRanks.meet(
                        context,
                        ranksPerTask,
                        bound == null ? 0 : MasterPort.getPort(bound),
                        listens ? HexFormat.of().formatHex(JobSecret.draw()) : "",
                        progress::add);
        try (Job job = ranks.join(bound, timeout)) {
            R result = run(context, ranks, job, CollectionConverters.asJava(rows));
            List<R> one = first ? Arrays.asList(result) : List.of();
            return CollectionConverters.asScala(one.iterator());
        } catch (Exception | Error e) {
            if (TaskException.endsExecutors(e)) {
                logger.error("The task failed", e); // Spark's log does not have it
            }
            throw told(explained(ranks, e));
        }
    }

    /** Lets the task that failed be the first to say so: it knows more. */
    private static TaskException told(TaskException failure) {
        if (!failure.isOwn()) {
            try {
                Thread.sleep(HEAD_START);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt(); // Spark knows, and kills this task
            }
        }
        return failure;
    }

    private R run(
            BarrierTaskContext context,
            SparkRanks ranks,
            @Nullable Job job,
            java.util.Iterator<T> rows)
            throws Exception {
        Thread watch = watchForKill(context, job);
        try {
            try {
                R result = function.call(ranks, rows);
                if (job != null && ranks.getTask() > 0) {
                    job.close(); // who still waits for this task learns that it has ended
                }
                // who is done waits: the job of process 0 is what tells the others of a failure
                context.barrier();
                return result;
            } finally {
                watch.interrupt();
                watch.join();
            }
        } catch (Exception | Error e) {
            if (job != null) {
                job.fail(-1, e);
            }
            throw e;
        }
    }

    /**
     * Ends this thread's task if Spark kills it. Spark marks the task, and interrupts its thread if
     * the job's owner has asked for that; ranks that wait for each other see neither.
     */
    private static Thread watchForKill(BarrierTaskContext context, @Nullable Job job) {
        Thread task = Thread.currentThread();
        Runnable watch =
                () -> {
                    try {
                        while (!context.isInterrupted()) {
                            Thread.sleep(KILL_INTERVAL);
                        }
                        if (job != null) {
                            job.fail(-1, new InterruptedException("Spark killed the task"));
                        }
                        task.interrupt();
                    } catch (InterruptedException e) {
                        return; // the task has ended
                    }
                };
        Thread watcher = new Thread(watch, "tp-kill-watch");
        watcher.setDaemon(true);
        watcher.start();
        return watcher;
    }

    /** Says which ranks failed where: these, or those of another task that these learned of. */
    private static TaskException explained(SparkRanks ranks, Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof JobFailedException e
                    && e.getProcess() >= 0
                    && e.getProcess() != ranks.getTask()) {
                String other = ranks.describe(e.getProcess());
                return new TaskException(other + ": " + e.getMessage(), false, failure);
            }
        }
        return new TaskException(
                ranks.describe(ranks.getTask()) + " failed: " + failure, true, failure);
    }

    /** A task of a job that failed, as its executor tells it. */
    static final class TaskException extends RuntimeException {

        private static final long serialVersionUID = 1L;

        private final boolean own;
        private final @Nullable Throwable thrown;

        /**
         * Creates an exception.
         *
         * @param message who failed, and why
         * @param own whether it was the task itself, and not another one that it learned of
         * @param thrown what was thrown
         */
        TaskException(String message, boolean own, @Nullable Throwable thrown) {
            super(message, endsExecutors(thrown) ? null : thrown);
            this.own = own;
            this.thrown = thrown;
        }

        /**
         * Returns whether Spark ends an executor, and in local mode the driver, that has this among
         * the causes of an exception ({@code spark.executor.killOnFatalErrorDepth}). The next run
         * would find it in its shutdown.
         */
        static boolean endsExecutors(@Nullable Throwable thrown) {
            return Stream.iterate(thrown, each -> each != null, Throwable::getCause)
                    .anyMatch(each -> each instanceof VirtualMachineError);
        }

        boolean isOwn() {
            return own;
        }

        /** Returns what was thrown, which is the cause unless Spark must not see it. */
        @Nullable Throwable thrown() {
            return thrown;
        }
    }

    /** The last words of a task, which travel to the driver with Spark's heartbeats. */
    static final class Progress extends AccumulatorV2<String, String> {

        private static final long serialVersionUID = 1L;

        private volatile String text = "";

        /** {@inheritDoc} */
        @Override
        public boolean isZero() {
            return text.isEmpty();
        }

        /** {@inheritDoc} */
        @Override
        public AccumulatorV2<String, String> copy() {
            Progress copy = new Progress();
            copy.add(text);
            return copy;
        }

        /** {@inheritDoc} */
        @Override
        public void reset() {
            text = "";
        }

        /** {@inheritDoc} */
        @Override
        public void add(String words) {
            text = words;
        }

        /** {@inheritDoc} */
        @Override
        public void merge(AccumulatorV2<String, String> other) {
            text = other.isZero() ? text : other.value();
        }

        /** {@inheritDoc} */
        @Override
        public String value() {
            return text;
        }
    }
}
