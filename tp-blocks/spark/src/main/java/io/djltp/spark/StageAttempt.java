package io.djltp.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.SparkException;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;

import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

import java.io.NotSerializableException;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeoutException;

/**
 * One attempt to run a barrier stage: Spark's job, and what the driver hears of its tasks.
 *
 * @param <T> the type of the rows
 * @param <R> the type of the result
 */
final class StageAttempt<T, R> {

    private static final String CANCELLED = "SPARK_JOB_CANCELLED";
    private static final Duration PATIENCE = Duration.ofSeconds(10); // for Spark's news

    private final RDD<T> rows;
    private final BarrierTask<T, R> task;
    private final SparkContext context;
    private final RunListener listener;

    StageAttempt(RDD<T> rows, BarrierTask<T, R> task) {
        this.rows = rows;
        this.task = task;
        context = rows.context();
        listener = new RunListener(UUID.randomUUID().toString(), task.progress().id());
    }

    /**
     * Runs the stage.
     *
     * @return the result of the task with rank 0
     * @throws SparkJobException if the function cannot be sent, a task fails, its executor is lost,
     *     or this thread is interrupted; when no task of the stage is at work any more
     */
    R run() {
        String runBefore = context.getLocalProperty(RunListener.PROPERTY);
        context.addSparkListener(listener);
        context.setLocalProperty(RunListener.PROPERTY, listener.run());
        try {
            return collect();
        } catch (SparkJobException e) { // interrupted
            listener.awaitEnd(PATIENCE);
            throw e;
        } catch (Exception e) { // of Scala's, where checked exceptions are not declared
            throw failure(e);
        } finally {
            context.setLocalProperty(RunListener.PROPERTY, runBefore);
            context.removeSparkListener(listener);
        }
    }

    private R collect() {
        ClassTag<R> tag = ClassTag$.MODULE$.apply(Object.class);
        RDD<R> results = rows.barrier().mapPartitions(task, false, tag);
        return InterruptibleJob.collect(new JavaRDD<>(results, tag)).get(0);
    }

    /** Returns whether Spark has begun the job: of one that it refuses it tells nothing. */
    private boolean hasBegun() {
        try {
            context.listenerBus().waitUntilEmpty(PATIENCE.toMillis());
        } catch (TimeoutException e) {
            return true; // for all that is known
        }
        return listener.hasBegun();
    }

    /** Returns why Spark refuses the job, which it tells by an exception alone. */
    private static RuntimeException refusal(Exception thrown) {
        if (thrown.getCause() instanceof NotSerializableException) {
            String found = thrown.getCause().getMessage().lines().findFirst().orElse("");
            return new SparkJobException(
                    "The function cannot be sent to the executors: it uses an object of "
                            + found
                            + " from outside of it, which is not serializable. Make the object in"
                            + " the function, or its class Serializable",
                    thrown.getCause());
        }
        return untold(thrown);
    }

    private static RuntimeException untold(Exception thrown) {
        return thrown instanceof SparkException || !(thrown instanceof RuntimeException)
                ? new SparkJobException(thrown.getMessage(), thrown)
                : (RuntimeException) thrown;
    }

    private RuntimeException failure(Exception thrown) {
        if (!hasBegun()) {
            return refusal(thrown);
        }
        RunFailure known = listener.awaitFailure(PATIENCE);
        boolean cancelled =
                thrown instanceof SparkException
                        && CANCELLED.equals(((SparkException) thrown).getCondition());
        if (known != null) {
            return new SparkJobException(
                    known.message(),
                    known.cause() == null ? thrown : known.cause(),
                    !cancelled && listener.awaitLoss(PATIENCE));
        }
        return untold(thrown);
    }
}
