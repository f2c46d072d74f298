package io.djltp.collective;

import io.djltp.bridge.TensorView;

import java.util.Arrays;

/** What one rank of a local group is about to do, as the other ranks see it. */
final class LocalCall {

    private final Collective collective;
    private final long sequence;
    private final String detail;
    private final Object agreement;
    final TensorView input;
    final TensorView output;

    /**
     * Describes a call.
     *
     * @param collective the operation
     * @param sequence the number of the call in the group, from 1
     * @param detail what else must be the same on all ranks, such as the reduction, in words
     * @param counts the shares, or {@code null} if the shape must be the same on all ranks
     * @param input what the other ranks read
     * @param output what the rank writes, and in an all-reduce the other ranks too
     */
    LocalCall(
            Collective collective,
            long sequence,
            String detail,
            long[] counts,
            TensorView input,
            TensorView output) {
        this.collective = collective;
        this.sequence = sequence;
        this.input = input;
        this.output = output;
        if (input == null) {
            this.detail = detail;
        } else if (counts == null) {
            this.detail = detail + " of " + input;
        } else {
            this.detail = detail + " of " + input + " in shares " + Arrays.toString(counts);
        }
        // everything that must be equal: shapes may differ where shares do
        agreement =
                Arrays.asList(
                        collective,
                        sequence,
                        detail,
                        input == null ? null : input.getDataType(),
                        counts == null
                                ? input == null ? null : input.getShape()
                                : Arrays.toString(counts));
    }

    Collective getCollective() {
        return collective;
    }

    boolean agreesWith(LocalCall other) {
        return agreement.equals(other.agreement);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return collective + " #" + sequence + detail;
    }
}
