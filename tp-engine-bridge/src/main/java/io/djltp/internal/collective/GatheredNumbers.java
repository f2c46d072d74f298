package io.djltp.internal.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import java.util.Arrays;
import java.util.stream.LongStream;

/** Whole numbers of all ranks of a group, such as how many rows each has, on every one of them. */
public final class GatheredNumbers {

    private GatheredNumbers() {}

    /**
     * Gathers numbers of which every rank has as many: one all-gather.
     *
     * @param group the ranks, all of which call it
     * @param manager the manager of what is made on the way, on the device of the rank
     * @param own the rank's numbers
     * @param issuer what they are, for errors
     * @return the numbers of all ranks, in their order
     */
    public static long[] of(Communicator group, NDManager manager, long[] own, String issuer) {
        long[] lengths = new long[group.getSize()];
        Arrays.fill(lengths, own.length);
        return of(group, manager, own, lengths, issuer);
    }

    /**
     * Gathers numbers of which ranks may have different counts: one all-gather.
     *
     * @param group the ranks, all of which call it
     * @param manager the manager of what is made on the way, on the device of the rank
     * @param own the rank's numbers
     * @param lengths how many each rank has, the same on all of them
     * @param issuer what they are, for errors
     * @return the numbers of all ranks, in their order
     */
    public static long[] of(
            Communicator group, NDManager manager, long[] own, long[] lengths, String issuer) {
        group.setIssuer(issuer);
        try (NDManager scope = manager.newSubManager()) {
            NDArray sent =
                    own.length == 0 // of which DJL would make a scalar
                            ? scope.create(new Shape(0), DataType.INT64)
                            : scope.create(own);
            Shape shape = new Shape(LongStream.of(lengths).sum());
            NDArray received = scope.create(shape, DataType.INT64);
            group.allGather(TensorView.of(sent), TensorView.of(received), lengths).await();
            return HostReads.longs(received);
        }
    }
}
