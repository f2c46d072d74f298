package io.djltp.collective;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.TensorView;

import java.util.Arrays;
import java.util.Locale;
import java.util.Objects;

/**
 * One call of a collective operation by one rank: what a backend carries out, what the ranks must
 * agree on, and what the flight recorder keeps of it.
 */
public final class CollectiveCall {

    private final Collective collective;
    private final long sequence;
    private final String group;
    private final String issuer;
    private final String terms;
    private ReduceOp op;
    private int root = -1;
    private long[] inputShares;
    private long[] outputShares;
    private TensorView input;
    private TensorView output;
    private Shape shape; // of the input
    private DataType dataType;
    private long bytes; // of the input
    private final long issued = System.nanoTime();
    private volatile long finished;
    private long blocked; // of the thread of the rank

    /**
     * Creates a call.
     *
     * @param collective the operation
     * @param sequence the number of the call in its group, from 1
     * @param group the name of the group, empty for that of all ranks
     * @param issuer who has called, or {@code null}
     * @param terms what the rank has said with it, or empty
     */
    CollectiveCall(
            Collective collective, long sequence, String group, String issuer, String terms) {
        this.collective = collective;
        this.sequence = sequence;
        this.group = group;
        this.issuer = issuer;
        this.terms = terms;
    }

    CollectiveCall with(TensorView input, TensorView output) {
        this.input = input;
        this.output = output;
        shape = input.getShape();
        dataType = input.getDataType();
        bytes = shape.size() * dataType.getNumOfBytes();
        return this;
    }

    CollectiveCall with(ReduceOp reduction) {
        op = reduction;
        return this;
    }

    CollectiveCall withRoot(int rank) {
        root = rank;
        return this;
    }

    CollectiveCall withShares(long[] shares, long[] received) {
        inputShares = shares;
        outputShares = received;
        return this;
    }

    /**
     * Returns the operation.
     *
     * @return the operation
     */
    public Collective getCollective() {
        return collective;
    }

    /**
     * Returns the number of the call in its group.
     *
     * @return the number, from 1
     */
    public long getSequence() {
        return sequence;
    }

    /**
     * Returns the reduction.
     *
     * @return the reduction, or {@code null} for an operation that does not reduce
     */
    public ReduceOp getOp() {
        return op;
    }

    /**
     * Returns the rank whose tensor is broadcast.
     *
     * @return the rank, or -1 for any other operation
     */
    public int getRoot() {
        return root;
    }

    /**
     * Returns the elements of each rank's share: of the output of an all-gather, of the input of a
     * reduce-scatter or an all-to-all.
     *
     * @return the shares, or {@code null} for any other operation; not to be changed
     */
    public long[] getShares() {
        return inputShares;
    }

    /**
     * Returns the elements that an all-to-all receives from each rank.
     *
     * @return the shares, or {@code null} for any other operation; not to be changed
     */
    public long[] getReceivedShares() {
        return outputShares;
    }

    /**
     * Returns what the rank puts in.
     *
     * @return the tensor, or {@code null} for a barrier or once the call has finished
     */
    public TensorView getInput() {
        return input;
    }

    /**
     * Returns where the result goes; the input itself for an operation in place.
     *
     * @return the tensor, or {@code null} for a barrier or once the call has finished
     */
    public TensorView getOutput() {
        return output;
    }

    /**
     * Returns the data type of the tensors.
     *
     * @return the data type, or {@code null} for a barrier
     */
    public DataType getDataType() {
        return dataType;
    }

    /**
     * Returns the size of what the rank puts in.
     *
     * @return the number of bytes
     */
    public long getBytes() {
        return bytes;
    }

    /**
     * Returns the size of the whole array that the operation is about, as {@link Traffic} counts
     * it.
     *
     * @return the number of bytes, on all ranks of the group the same but for an all-to-all
     */
    public long getPayload() {
        return inputShares == null || collective == Collective.ALL_TO_ALL
                ? bytes
                : Arrays.stream(inputShares).sum() * dataType.getNumOfBytes();
    }

    /**
     * Returns who has called.
     *
     * @return the name of a block, a loss or a gradient, empty if it is not known
     */
    public String getIssuer() {
        return issuer == null ? "" : issuer;
    }

    /**
     * Returns the name of the group.
     *
     * @return the name, which all of its ranks know it by; empty for the group of all ranks
     */
    public String getGroup() {
        return group;
    }

    /**
     * Returns when the rank called.
     *
     * @return the time, as {@link System#nanoTime()} gives it
     */
    public long getIssued() {
        return issued;
    }

    /**
     * Returns how long the rank's thread stood still in the call and in waiting for its result. On
     * a GPU it does not wait for the result. Measured only while somebody listens to the calls, and
     * complete when the rank has what it waits for.
     *
     * @return the time in nanoseconds
     */
    public long getBlocked() {
        return blocked;
    }

    /** Adds time in which the rank's thread stood still. */
    void addBlocked(long nanos) {
        blocked += nanos;
    }

    /** Notes that the operation is complete, and lets go of the tensors. */
    public void finish() {
        finished = System.nanoTime();
        input = null;
        output = null;
    }

    /**
     * Returns whether the operation is complete.
     *
     * @return whether {@link #finish()} was called
     */
    public boolean isFinished() {
        return finished != 0;
    }

    /**
     * Returns whether two ranks have called the same: shapes may differ where shares do. What a
     * trainer's close calls may look like a step of the others, and is not the same (NCCL looks at
     * calls only that it does not complete, and so does not see it).
     *
     * @param other the call of the other rank
     * @return whether the calls are of one operation
     */
    public boolean agreesWith(CollectiveCall other) {
        if (collective != other.collective
                || sequence != other.sequence
                || op != other.op
                || root != other.root
                || DifferentCalls.isClose(issuer) != DifferentCalls.isClose(other.issuer)
                || dataType != other.dataType
                || !terms.equals(other.terms)) {
            return false;
        }
        if (collective == Collective.ALL_TO_ALL) {
            return true;
        }
        return inputShares == null
                ? Objects.equals(shape, other.shape)
                : Arrays.equals(inputShares, other.inputShares);
    }

    /**
     * Returns what must be the same on all ranks, for ranks of other processes.
     *
     * @return a text
     */
    public String getAgreement() {
        String close = DifferentCalls.isClose(issuer) ? " by " + DifferentCalls.CLOSE : "";
        String last = close + terms;
        if (inputShares == null) {
            return describe() + last;
        }
        boolean sharesDiffer = collective == Collective.ALL_TO_ALL;
        String shares = sharesDiffer ? "" : " in " + SharesText.of(inputShares);
        return collective + " #" + sequence + detail() + " of " + type() + shares + place() + last;
    }

    /**
     * Returns the call in words, without who has issued it.
     *
     * @return such as {@code all-reduce #412 (SUM) of (64, 512) float32}
     */
    public String describe() {
        StringBuilder text = new StringBuilder();
        text.append(collective).append(" #").append(sequence).append(detail());
        if (shape != null) {
            text.append(" of ").append(shape).append(' ').append(type());
        }
        if (inputShares != null) {
            text.append(" in shares ").append(SharesText.of(inputShares));
        }
        return text.append(place()).toString();
    }

    private String place() {
        return group.isEmpty() ? "" : " in " + group;
    }

    private String detail() {
        if (op != null) {
            return " (" + op + ")";
        }
        return root < 0 ? "" : " from rank " + root;
    }

    private String type() {
        return dataType == null ? "" : dataType.name().toLowerCase(Locale.ROOT);
    }

    /** Returns how long the call has been going on, or went on, in nanoseconds. */
    long duration() {
        return (isFinished() ? finished : System.nanoTime()) - issued;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return describe() + (issuer == null ? "" : " issued by " + issuer) + terms;
    }
}
