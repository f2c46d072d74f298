package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.training.dataset.Batch;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.function.LongUnaryOperator;
import java.util.zip.CRC32C;

/**
 * What tells one order of the data from another: a checksum of the batches of an epoch so far, of
 * the numbers of their records, or of the beginning of their arrays where the dataset says none.
 */
final class BatchOrder {

    private static final int LOOKED_AT = 1 << 14; // elements of an array

    private long checksum;

    BatchOrder(long checksum) {
        this.checksum = checksum;
    }

    long checksum() {
        return checksum;
    }

    /** Adds the batch that follows, of a dataset that numbers its records so. */
    void add(Batch batch, LongUnaryOperator numbers) {
        List<?> indices = batch.getIndices();
        if (indices != null && indices.stream().allMatch(BatchOrder::isNumber)) {
            add(indices, numbers);
            return;
        }
        CRC32C sum = begin();
        addTo(sum, batch.getData());
        addTo(sum, batch.getLabels());
        checksum = sum.getValue();
    }

    /** Adds the batch that follows, by the numbers of its records. */
    void add(List<?> indices, LongUnaryOperator numbers) {
        CRC32C sum = begin();
        for (Object index : indices) {
            long number = numbers.applyAsLong(((Number) index).longValue());
            sum.update(ByteBuffer.allocate(Long.BYTES).putLong(0, number));
        }
        checksum = sum.getValue();
    }

    private static boolean isNumber(Object index) {
        return index instanceof Number;
    }

    /** The checksum of what came before goes into that of what follows. */
    private CRC32C begin() {
        CRC32C sum = new CRC32C();
        sum.update(ByteBuffer.allocate(Long.BYTES).putLong(0, checksum));
        return sum;
    }

    private static void addTo(CRC32C sum, NDList arrays) {
        for (NDArray array : arrays) {
            if (array.isSparse()) {
                continue;
            }
            sum.update(array.getShape().getEncoded());
            boolean large = array.size() > LOOKED_AT;
            NDArray flat = array.flatten();
            NDArray beginning = large ? flat.get(new NDIndex("0:" + LOOKED_AT)) : flat;
            sum.update(beginning.toByteBuffer(true));
            beginning.close();
            flat.close();
        }
    }
}
