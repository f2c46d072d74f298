package io.djltp.checkpoint;

import ai.djl.training.dataset.Dataset;
import ai.djl.training.dataset.RandomAccessDataset;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.function.LongUnaryOperator;
import java.util.zip.CRC32C;

/**
 * Which records the numbers of a dataset mean. A part of a dataset, of {@code randomSplit} or
 * {@code subDataset}, numbers its records from 0, whichever they are: another split has the same
 * numbers. What tells them apart are the numbers that the records have in the whole.
 */
final class RecordNumbers {

    private static final Logger logger = LoggerFactory.getLogger(RecordNumbers.class);

    private RecordNumbers() {}

    /** Returns what the numbers of a dataset's records are in the whole that it is a part of. */
    static LongUnaryOperator of(Dataset dataset) {
        Class<?> type = dataset.getClass();
        if (!isPart(type)) {
            return number -> number;
        }
        try {
            LongUnaryOperator ofWhole = of((Dataset) field(type, "dataset").get(dataset));
            if (type.getSimpleName().equals("SubDatasetByIndices")) {
                List<?> all = (List<?>) field(type, "subIndices").get(dataset);
                return i -> ofWhole.applyAsLong(((Number) all.get((int) i)).longValue());
            }
            int[] all = (int[]) field(type, "indices").get(dataset);
            int from = field(type, "from").getInt(dataset);
            return i -> ofWhole.applyAsLong(all[from + (int) i]);
        } catch (ReflectiveOperationException | RuntimeException e) {
            logger.debug("Which records are in {} cannot be known", dataset, e);
            return number -> number;
        }
    }

    /** DJL has two kinds of parts of arrays, and two of any other records. */
    private static boolean isPart(Class<?> type) {
        return type.getSimpleName().startsWith("SubDataset")
                && type.getPackage() == RandomAccessDataset.class.getPackage();
    }

    /** Returns a checksum of what a dataset has: of a part which records, else how many. */
    static long checksum(Dataset dataset) {
        CRC32C sum = new CRC32C();
        if (dataset instanceof RandomAccessDataset) {
            long size = ((RandomAccessDataset) dataset).size();
            ByteBuffer number = ByteBuffer.allocate(Long.BYTES);
            sum.update(number.putLong(0, size).rewind());
            LongUnaryOperator ofWhole = of(dataset);
            long listed = isPart(dataset.getClass()) ? size : 0;
            for (long i = 0; i < listed; i++) {
                sum.update(number.putLong(0, ofWhole.applyAsLong(i)).rewind());
            }
        }
        return sum.getValue();
    }

    private static Field field(Class<?> type, String name) throws NoSuchFieldException {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}
