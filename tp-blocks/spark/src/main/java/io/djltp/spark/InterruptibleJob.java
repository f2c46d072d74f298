package io.djltp.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.serializer.SerializerHelper;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.util.io.ChunkedByteBuffer;

import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import java.util.stream.IntStream;

/**
 * Jobs of Spark that end with who waits for them. Spark's own actions leave a job running when the
 * thread that waits for it is interrupted.
 */
public final class InterruptibleJob {

    private static final String INTERRUPT = "spark.job.interruptOnCancel";
    private static final long SIZE_UNKNOWN = -1;
    private static final ClassTag<Object> ANY = ClassTag$.MODULE$.apply(Object.class);

    private InterruptibleJob() {}

    /**
     * Brings rows to the driver as {@code JavaRDD.collect} does, but by Java's serialization
     * whatever {@code spark.serializer} is: Kryo takes neither records nor Java's immutable lists.
     * An interrupt of this thread cancels the job.
     *
     * @param rows the rows, which are {@link java.io.Serializable}
     * @param <T> their type
     * @return the rows, in their order
     * @throws SparkJobException if this thread is interrupted, which it still is then
     */
    public static <T> List<T> collect(JavaRDD<T> rows) {
        // Kryo takes arrays of bytes, of which each is a piece of the rows of its partition
        JavaRDD<byte[]> pieces = rows.mapPartitions(part -> pieces(part).iterator());
        List<T> all = new ArrayList<>();
        for (List<byte[]> part : collectPartitions(pieces)) {
            ByteBuffer[] chunks = part.stream().map(ByteBuffer::wrap).toArray(ByteBuffer[]::new);
            Object joined =
                    SerializerHelper.deserializeFromChunkedBuffer(
                            serializer(), new ChunkedByteBuffer(chunks), ANY);
            @SuppressWarnings("unchecked")
            List<T> own = (List<T>) joined;
            all.addAll(own);
        }
        return all;
    }

    private static <T> List<byte[]> pieces(Iterator<T> rows) {
        ArrayList<T> all = new ArrayList<>();
        rows.forEachRemaining(all::add);
        ChunkedByteBuffer sent =
                SerializerHelper.serializeToChunkedBuffer(serializer(), all, SIZE_UNKNOWN, ANY);
        return Arrays.stream(sent.getChunks()).map(InterruptibleJob::bytes).toList();
    }

    private static byte[] bytes(ByteBuffer piece) {
        byte[] bytes = new byte[piece.remaining()];
        piece.get(bytes);
        return bytes;
    }

    /** Returns that by which Spark sends functions, which is always Java's. */
    private static SerializerInstance serializer() {
        return SparkEnv.get().closureSerializer().newInstance();
    }

    private static List<byte[]>[] collectPartitions(JavaRDD<byte[]> rows) {
        SparkContext context = rows.context();
        String tag = "djltp-" + UUID.randomUUID();
        String before = context.getLocalProperty(INTERRUPT);
        context.addJobTag(tag);
        context.setLocalProperty(INTERRUPT, "true");
        try {
            return rows.collectPartitions(IntStream.range(0, rows.getNumPartitions()).toArray());
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
