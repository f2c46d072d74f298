package io.djltp.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.serializer.SerializerHelper;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.util.io.ChunkedByteBuffer;

import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;

/**
 * An object in pieces of bytes, by Java's serialization, whatever {@code spark.serializer} is: Kryo
 * takes arrays of bytes, and neither records nor Java's immutable lists.
 */
final class JavaPieces {

    private static final long SIZE_UNKNOWN = -1;

    private JavaPieces() {}

    /** Returns the pieces, in their order. */
    static List<byte[]> of(Object value) {
        ChunkedByteBuffer all =
                SerializerHelper.serializeToChunkedBuffer(serializer(), value, SIZE_UNKNOWN, tag());
        return Arrays.stream(all.getChunks()).map(JavaPieces::bytes).toList();
    }

    private static byte[] bytes(ByteBuffer piece) {
        if (piece.hasArray() && piece.array().length == piece.remaining()) {
            return piece.array();
        }
        byte[] bytes = new byte[piece.remaining()];
        piece.get(bytes);
        return bytes;
    }

    /** Returns the object of pieces. */
    static Object join(List<byte[]> pieces) {
        ByteBuffer[] chunks = pieces.stream().map(ByteBuffer::wrap).toArray(ByteBuffer[]::new);
        return SerializerHelper.deserializeFromChunkedBuffer(
                serializer(), new ChunkedByteBuffer(chunks), tag());
    }

    /** Returns that by which Spark sends functions, which is always Java's. */
    private static SerializerInstance serializer() {
        return SparkEnv.get().closureSerializer().newInstance();
    }

    private static ClassTag<Object> tag() {
        return ClassTag$.MODULE$.apply(Object.class);
    }
}
