package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.torch.TensorView;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;

/**
 * Refuses arguments that no backend could work with, before the operation is a call of the rank.
 */
final class ArgumentChecks {

    private static final Set<DataType> TYPES =
            EnumSet.of(
                    DataType.FLOAT32,
                    DataType.FLOAT64,
                    DataType.FLOAT16,
                    DataType.BFLOAT16,
                    DataType.INT32,
                    DataType.INT64);

    private final int rank;
    private final int size;

    ArgumentChecks(int rank, int size) {
        this.rank = rank;
        this.size = size;
    }

    void tensor(Collective collective, TensorView tensor) {
        if (!TYPES.contains(tensor.getDataType())) {
            throw new IllegalArgumentException(
                    collective + " does not take " + tensor + ", only the types " + TYPES);
        }
        if (!tensor.isContiguous()) {
            throw new IllegalArgumentException(
                    collective
                            + " needs a contiguous tensor, but this one of "
                            + tensor
                            + " is not: copy it first");
        }
    }

    void root(int root) {
        if (root < 0 || root >= size) {
            throw new IllegalArgumentException(
                    "The root of a broadcast must be a rank from 0 to "
                            + (size - 1)
                            + ", not "
                            + root);
        }
    }

    /**
     * Checks an operation between the shares of all ranks and what they make up.
     *
     * @param shares the elements of each rank's share
     * @param share this rank's share
     * @param all the shares of all ranks, one after another
     */
    void shares(Collective collective, long[] shares, TensorView share, TensorView all) {
        tensor(collective, share);
        tensor(collective, all);
        long sum = Arrays.stream(shares).sum();
        if (shares.length != size
                || Arrays.stream(shares).anyMatch(each -> each < 0)
                || shares[rank] != share.size()
                || sum != all.size()) {
            throw new IllegalArgumentException(
                    collective
                            + ": the shares "
                            + Arrays.toString(shares)
                            + " do not fit "
                            + size
                            + " ranks, "
                            + share
                            + " as the share of rank "
                            + rank
                            + " and "
                            + all
                            + " as the whole");
        }
        types(collective, share, all);
    }

    void allToAll(TensorView input, TensorView output, long[] sent, long[] received) {
        tensor(Collective.ALL_TO_ALL, input);
        tensor(Collective.ALL_TO_ALL, output);
        parts("sent", sent, input);
        parts("received", received, output);
        types(Collective.ALL_TO_ALL, input, output);
        if (sent[rank] != received[rank]) {
            throw new IllegalArgumentException(
                    "all-to-all: rank "
                            + rank
                            + " sends "
                            + sent[rank]
                            + " elements to itself and expects "
                            + received[rank]
                            + ": the two must be the same");
        }
    }

    private void parts(String direction, long[] parts, TensorView tensor) {
        if (parts.length != size
                || Arrays.stream(parts).anyMatch(part -> part < 0)
                || Arrays.stream(parts).sum() != tensor.size()) {
            throw new IllegalArgumentException(
                    "all-to-all: the parts "
                            + direction
                            + " "
                            + Arrays.toString(parts)
                            + " do not fit "
                            + size
                            + " ranks and "
                            + tensor);
        }
    }

    private static void types(Collective collective, TensorView first, TensorView second) {
        if (first.getDataType() != second.getDataType()) {
            throw new IllegalArgumentException(
                    collective + " of " + first + " and " + second + ": the data types differ");
        }
    }
}
