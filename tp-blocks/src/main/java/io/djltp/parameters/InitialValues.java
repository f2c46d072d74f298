package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.nn.Parameter;

import io.djltp.torch.Checksum;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Checksums of the whole values that are drawn for parameters that are cut: each process draws them
 * by itself and keeps its parts, which would not fit together if the seeds differed.
 */
final class InitialValues {

    private static final long BLOCK = 1 << 20; // elements

    private final boolean compared;
    private final Map<Parameter, Long> checksums = new IdentityHashMap<>();

    /** Creates the checksums of a training, which are made only if they are compared. */
    InitialValues(boolean compared) {
        this.compared = compared;
    }

    /** Adds values that are drawn, before they are cut: all of a parameter, or the next rows. */
    void add(Parameter parameter, NDArray values) {
        if (compared) {
            add(parameter, checksum(values));
        }
    }

    /** Adds what values follow from, which is faster than to read them. */
    void add(Parameter parameter, long origin) {
        checksums.merge(parameter, origin, (sum, next) -> 31 * sum + next);
    }

    /** Returns the checksum of an array, of which a block at a time takes more memory. */
    static long checksum(NDArray values) {
        long rows = values.getShape().get(0);
        long step = Math.max(1, BLOCK * rows / Math.max(1, values.size()));
        long sum = 0;
        for (long first = 0; first < rows; first += step) {
            String range = first + ":" + Math.min(rows, first + step);
            try (NDArray block = values.get(new NDIndex(range))) {
                sum = 31 * sum + Checksum.of(block);
            }
        }
        return sum;
    }

    /** Returns the checksum of a parameter, or {@code null} if its values were not drawn whole. */
    Long get(Parameter parameter) {
        return checksums.get(parameter);
    }
}
