package io.djltp.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaRDD;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * Jobs of Spark that end with who waits for them. Spark's own actions leave a job running when the
 * thread that waits for it is interrupted.
 */
public final class InterruptibleJob {

    private static final String INTERRUPT = "spark.job.interruptOnCancel";

    private InterruptibleJob() {}

    /**
     * Brings rows to the driver as {@code JavaRDD.collect} does, but by Java's serialization
     * whatever {@code spark.serializer} is. An interrupt of this thread cancels the job.
     *
     * @param rows the rows, which are {@link java.io.Serializable}
     * @param <T> their type
     * @return the rows, in their order
     * @throws SparkJobException if this thread is interrupted, which it still is then
     */
    public static <T> List<T> collect(JavaRDD<T> rows) {
        JavaRDD<byte[]> pieces = rows.mapPartitions(part -> JavaPieces.of(listOf(part)).iterator());
        int[] partitions = IntStream.range(0, pieces.getNumPartitions()).toArray();
        List<byte[]>[] sent = run(rows.context(), () -> pieces.collectPartitions(partitions));
        List<T> all = new ArrayList<>();
        for (List<byte[]> part : sent) {
            @SuppressWarnings("unchecked")
            List<T> own = (List<T>) JavaPieces.join(part);
            all.addAll(own);
        }
        return all;
    }

    private static <T> ArrayList<T> listOf(Iterator<T> rows) {
        ArrayList<T> all = new ArrayList<>();
        rows.forEachRemaining(all::add);
        return all;
    }

    private static <R> R run(SparkContext context, Supplier<R> actions) {
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
