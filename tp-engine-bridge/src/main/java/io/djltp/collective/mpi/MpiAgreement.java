package io.djltp.collective.mpi;

import ai.djl.ndarray.types.DataType;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.DifferentCalls;
import io.djltp.collective.ReduceOp;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Makes sure that the ranks of a group call the same operation: MPI does not look, and mixes up
 * their memory.
 *
 * <p>The ranks compare a hash of what they call, in one small all-reduce; when it differs they tell
 * each other their calls.
 */
final class MpiAgreement {

    private static final int TEXT_BYTES = 512;
    private static final long FNV_OFFSET = 0xcbf29ce484222325L;
    private static final long FNV_PRIME = 0x100000001b3L;

    private final MpiTransfers transfers;
    private final int rank;
    private final int size;
    private final Memory hashes = new Memory(2 * Long.BYTES);
    private Memory matrix; // made when it is needed first
    private Memory texts;

    MpiAgreement(MpiTransfers transfers, int rank, int size) {
        this.transfers = transfers;
        this.rank = rank;
        this.size = size;
    }

    /**
     * Waits until all ranks have come, and compares what they call.
     *
     * @param call what this rank calls
     * @throws CollectiveException on all ranks, if they do not agree
     */
    void check(CollectiveCall call) {
        long hash = hash(call.getAgreement());
        hashes.setLong(0, hash);
        hashes.setLong(Long.BYTES, ~hash);
        transfers.of(DataType.INT64).allReduce(Pointer.nativeValue(hashes), 2, ReduceOp.MIN);
        // the smallest complement is that of the largest
        if (hashes.getLong(0) != ~hashes.getLong(Long.BYTES)) {
            throw new CollectiveException(describe(call));
        }
    }

    /** Returns 64 bits that two different texts hardly have in common (FNV-1a, and a mix). */
    static long hash(String text) {
        long hash = FNV_OFFSET;
        for (int i = 0; i < text.length(); i++) {
            hash = (hash ^ text.charAt(i)) * FNV_PRIME;
        }
        return hash ^ hash >>> 32;
    }

    private String describe(CollectiveCall call) {
        texts = new Memory((long) size * TEXT_BYTES);
        byte[] described =
                Arrays.copyOf(call.toString().getBytes(StandardCharsets.UTF_8), TEXT_BYTES);
        texts.write((long) rank * TEXT_BYTES, described, 0, TEXT_BYTES);
        transfers.allGather(
                MpiLibrary.IN_PLACE, Pointer.nativeValue(texts), TEXT_BYTES / Long.BYTES);
        List<String> all = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            byte[] text = texts.getByteArray((long) i * TEXT_BYTES, TEXT_BYTES);
            all.add("rank " + i + " " + new String(text, StandardCharsets.UTF_8).replace("\0", ""));
        }
        return DifferentCalls.describe(all);
    }

    /**
     * Tells all ranks what each sends to and expects of each other in an all-to-all, and compares
     * the two.
     *
     * @param call what this rank calls
     * @return the elements of the largest share, and those that a rank sends or receives at most
     * @throws CollectiveException on all ranks, if they do not fit
     */
    long[] exchangeCounts(CollectiveCall call) {
        if (matrix == null) {
            matrix = new Memory(2L * size * size * Long.BYTES);
        }
        long row = 2L * size * Long.BYTES;
        matrix.write(rank * row, call.getShares(), 0, size);
        matrix.write(rank * row + row / 2, call.getReceivedShares(), 0, size);
        transfers
                .of(DataType.INT64)
                .allGather(MpiLibrary.IN_PLACE, Pointer.nativeValue(matrix), 2L * size);
        long largest = 0;
        long total = 0;
        for (int i = 0; i < size; i++) {
            long[] sent = matrix.getLongArray(i * row, size);
            long[] received = matrix.getLongArray(i * row + row / 2, size);
            checkRow(i, sent);
            largest = Math.max(largest, Arrays.stream(sent).max().orElse(0));
            total = Math.max(total, Arrays.stream(sent).sum());
            total = Math.max(total, Arrays.stream(received).sum());
        }
        return new long[] {largest, total};
    }

    private void checkRow(int from, long[] sent) {
        for (int to = 0; to < size; to++) {
            long expected = matrix.getLong(((2L * to + 1) * size + from) * Long.BYTES);
            if (sent[to] != expected) {
                throw new CollectiveException(
                        "rank "
                                + from
                                + " sends "
                                + sent[to]
                                + " elements to rank "
                                + to
                                + ", which expects "
                                + expected);
            }
        }
    }
}
