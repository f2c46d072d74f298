package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.torch.Checksum;

import java.util.IdentityHashMap;
import java.util.Map;

/**
 * Checksums of the whole values that are drawn for parameters that are cut: each process draws them
 * by itself and keeps its parts, which would not fit together if the seeds differed.
 */
final class InitialValues {

    private final boolean compared;
    private final Map<Parameter, Long> checksums = new IdentityHashMap<>();

    /** Creates the checksums of a training, which are made only if they are compared. */
    InitialValues(boolean compared) {
        this.compared = compared;
    }

    /** Adds consecutive rows of a parameter, before they are cut. */
    void add(Parameter parameter, NDArray rows) {
        if (compared) {
            checksums.merge(parameter, Checksum.of(rows), (sum, next) -> 31 * sum + next);
        }
    }

    /** Returns the checksum of a parameter, or {@code null} if its values were not drawn whole. */
    Long get(Parameter parameter) {
        return checksums.get(parameter);
    }
}
