package io.djltp.spark;

import org.apache.spark.SparkContext;

import java.util.UUID;
import java.util.function.Supplier;

/**
 * Jobs of Spark that end with who waits for them. Spark's own actions leave a job running when the
 * thread that waits for it is interrupted.
 */
public final class InterruptibleJob {

    private static final String INTERRUPT = "spark.job.interruptOnCancel";

    private InterruptibleJob() {}

    /**
     * Runs actions of Spark. An interrupt of this thread cancels their jobs, which interrupts the
     * tasks.
     *
     * @param context Spark's context
     * @param actions the actions, such as {@code collect}
     * @param <R> the type of the result
     * @return what the actions return
     * @throws SparkJobException if this thread is interrupted, which it still is then
     */
    public static <R> R run(SparkContext context, Supplier<R> actions) {
        String tag = "djltp-" + UUID.randomUUID();
        String before = context.getLocalProperty(INTERRUPT);
        context.addJobTag(tag);
        context.setLocalProperty(INTERRUPT, "true");
        try {
            return actions.get();
        } catch (Exception e) { // of Scala's, where checked exceptions are not declared
            if (!(e instanceof InterruptedException)) {
                throw e;
            }
            context.cancelJobsWithTag(tag, "who waited for the job was interrupted");
            Thread.currentThread().interrupt();
            throw new SparkJobException(
                    "Interrupted while waiting for Spark's job, which is cancelled", e);
        } finally {
            context.setLocalProperty(INTERRUPT, before);
            context.removeJobTag(tag);
        }
    }
}
