package io.djltp.spark.ml;

import java.nio.ByteBuffer;
import java.util.zip.CRC32C;

/** Tells the rows of a partition, in their order, from others. */
final class RowChecksum {

    private final CRC32C sum = new CRC32C();
    private ByteBuffer buffer = ByteBuffer.allocate(0);

    /** Adds the row that follows. */
    void add(int[] features, double label) {
        int bytes = features.length * Integer.BYTES + Double.BYTES;
        if (buffer.capacity() < bytes) {
            buffer = ByteBuffer.allocate(bytes);
        }
        buffer.clear();
        buffer.asIntBuffer().put(features);
        buffer.putDouble(bytes - Double.BYTES, label);
        sum.update(buffer.limit(bytes));
    }

    long value() {
        return sum.getValue();
    }
}
