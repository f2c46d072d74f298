package io.djltp.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.SparkException;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;

import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

import java.time.Duration;
import java.util.UUID;

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
     * @throws SparkJobException if a task fails, its executor is lost, or this thread is
     *     interrupted; when no task of the stage is at work any more
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

    private RuntimeException failure(Exception thrown) {
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
        if (thrown instanceof SparkException || !(thrown instanceof RuntimeException)) {
            return new SparkJobException(thrown.getMessage(), thrown);
        }
        return (RuntimeException) thrown;
    }
}
