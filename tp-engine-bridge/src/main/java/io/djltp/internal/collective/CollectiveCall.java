package io.djltp.internal.collective;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.TrafficTable;
import io.djltp.internal.Errors;
import io.djltp.internal.events.CollectiveEvent;
import io.djltp.internal.events.CollectiveWaitEvent;
import io.djltp.internal.torch.TensorView;

import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.StringJoiner;

/**
 * One call of a collective operation by one rank: what a backend carries out, what the ranks must
 * agree on, and what the flight recorder keeps of it.
 */
public final class CollectiveCall {

    /** The issuer of what a trainer's close calls: it may meet a step of the other ranks. */
    public static final String CLOSE = "the close of the trainer";

    /** What is said of a rank whose call is not known. */
    public static final String NOT_YET = "not yet";

    private static final String WITH = ", with "; // between a call and the terms of the rank
    private static final int EACH = 8; // as many shares are listed one by one

    private final Collective collective;
    private final long sequence;
    private final String group;
    private final @Nullable String issuer;
    private final String terms;
    private @Nullable ReduceOp op;
    private int root = -1;
    private long @Nullable [] inputShares;
    private long @Nullable [] outputShares;
    private @Nullable TensorView input;
    private @Nullable TensorView output;
    private @Nullable Shape shape; // of the input
    private @Nullable DataType dataType;
    private long bytes; // of the input
    private final long issued = System.nanoTime();
    private volatile long finished;
    private long blocked; // of the thread of the rank
    private boolean watched; // somebody listens to calls, or records them
    private @Nullable CollectiveEvent event; // null: nobody records it
    private @Nullable CollectiveWaitEvent waitEvent;
    private long arrived; // 0: not yet, or nobody watches
    private boolean waiting;
    private volatile long waited;

    /**
     * Creates a call.
     *
     * @param collective the operation
     * @param sequence the number of the call in its group, from 1
     * @param group the name of the group, empty for that of all ranks
     * @param issuer who has called, or {@code null}
     * @param terms what the rank has said with it, or empty
     */
    public CollectiveCall(
            Collective collective,
            long sequence,
            String group,
            @Nullable String issuer,
            String terms) {
        this.collective = collective;
        this.sequence = sequence;
        this.group = group;
        this.issuer = issuer;
        this.terms = terms.isEmpty() ? "" : WITH + terms;
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

    /**
     * Sets how many elements go to and come from each rank.
     *
     * @param shares as {@link #getShares()}
     * @param received as {@link #getReceivedShares()}, or {@code null} for any other operation than
     *     an all-to-all
     * @return this
     */
    public CollectiveCall withShares(long[] shares, long @Nullable [] received) {
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
     * @return the reduction
     * @throws IllegalStateException if the operation does not reduce
     */
    public ReduceOp getOp() {
        return has(op);
    }

    /** {@return whether the operation reduces} */
    public boolean isReduction() {
        return op != null;
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
     * @return the shares, not to be changed
     * @throws IllegalStateException for any other operation
     */
    public long[] getShares() {
        return has(inputShares);
    }

    /**
     * Returns the elements that an all-to-all receives from each rank.
     *
     * @return the shares, not to be changed
     * @throws IllegalStateException for any other operation
     */
    public long[] getReceivedShares() {
        return has(outputShares);
    }

    /** {@return whether there are tensors, which a barrier lacks, and a call that has finished} */
    public boolean hasTensors() {
        return input != null;
    }

    /**
     * Returns what the rank puts in.
     *
     * @return the tensor
     * @throws IllegalStateException for a barrier, or once the call has finished
     */
    public TensorView getInput() {
        return has(input);
    }

    /**
     * Returns where the result goes; the input itself for an operation in place.
     *
     * @return the tensor
     * @throws IllegalStateException for a barrier, or once the call has finished
     */
    public TensorView getOutput() {
        return has(output);
    }

    /**
     * Returns the data type of the tensors.
     *
     * @return the data type
     * @throws IllegalStateException for a barrier
     */
    public DataType getDataType() {
        return has(dataType);
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
     * Returns the size of the whole array that the operation is about, as {@link TrafficTable}
     * counts it.
     *
     * @return the number of bytes, on all ranks of the group the same but for an all-to-all
     */
    public long getPayload() {
        return inputShares == null || collective == Collective.ALL_TO_ALL
                ? bytes
                : Arrays.stream(inputShares).sum() * getDataType().getNumOfBytes();
    }

    private <T> T has(@Nullable T part) {
        return Errors.present(part, "The call has no such part, or no more: %s", this);
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

    /**
     * Returns how long the rank has waited in the operation until all ranks of the group had
     * arrived. Measured only while somebody listens to the calls or records them, and complete when
     * the rank has what it waits for.
     *
     * @return the time in nanoseconds; 0 for the backend {@code nccl}, where it is not known
     */
    public long getWaited() {
        return waited;
    }

    /**
     * Lets waits be measured.
     *
     * @param recorded the event that ends when the operation is complete, or {@code null}
     */
    void watch(@Nullable CollectiveEvent recorded) {
        watched = true;
        event = recorded;
    }

    /** Notes that the rank has arrived in the operation. */
    public void beginWait() {
        if (watched && arrived == 0) {
            arrived = System.nanoTime();
            waiting = true;
            waitEvent = event == null ? null : event.beginWait();
        }
    }

    /**
     * Returns whether the wait for other ranks is measured and goes on.
     *
     * @return whether {@link #endWait()} is to be called
     */
    public boolean isWaiting() {
        return waiting;
    }

    /** Notes that all ranks of the group have arrived. */
    public void endWait() {
        if (waiting) {
            waiting = false;
            waited = System.nanoTime() - arrived;
            if (waitEvent != null) {
                waitEvent.commit();
            }
        }
    }

    /** Notes that the operation is complete, and lets go of the tensors. */
    public void finish() {
        if (event != null) {
            event.commit();
            event = null;
        }
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

    /** Returns how long the call has been going on, or went on, in nanoseconds. */
    long duration() {
        return (isFinished() ? finished : System.nanoTime()) - issued;
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
                || isClose() != other.isClose()
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

    private boolean isClose() {
        return issuer != null && issuer.startsWith(CLOSE);
    }

    /**
     * Returns what must be the same on all ranks, for ranks of other processes.
     *
     * @return a text
     */
    public String getAgreement() {
        String last = (isClose() ? " by " + CLOSE : "") + terms;
        if (inputShares == null) {
            return describe() + last;
        }
        String shares = collective == Collective.ALL_TO_ALL ? "" : " in " + text(inputShares);
        return collective + " #" + sequence + detail() + " of " + type() + shares + place() + last;
    }

    /**
     * Returns the call in words, without who has issued it.
     *
     * @return such as {@code all-reduce #412 (SUM) of (64, 512) float32}
     */
    public String describe() {
        return collective
                + " #"
                + sequence
                + detail()
                + (shape == null ? "" : " of " + shape + ' ' + type())
                + (inputShares == null ? "" : " in shares " + text(inputShares))
                + place();
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

    /**
     * Returns the shares of an operation in words. Of many ranks, equal neighbours are counted: the
     * text goes with each message to each peer, and into every rank's last calls. Different shares
     * still have different texts.
     *
     * @return such as {@code [4, 4, 4]}, or {@code [3 x 5, 61 x 4]}
     */
    private static String text(long... shares) {
        if (shares.length <= EACH) {
            return Arrays.toString(shares);
        }
        StringJoiner text = new StringJoiner(", ", "[", "]");
        int first = 0;
        for (int i = 1; i <= shares.length; i++) {
            if (i == shares.length || shares[i] != shares[first]) {
                int count = i - first;
                text.add((count == 1 ? "" : count + " x ") + shares[first]);
                first = i;
            }
        }
        return text.toString();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return describe() + (issuer == null ? "" : " issued by " + issuer) + terms;
    }

    /**
     * Returns the failure of a rank in this call.
     *
     * @param rank the rank, in the group of all ranks
     * @param cause what it threw
     * @return the failure of the group
     */
    public CollectiveException failedOn(int rank, Throwable cause) {
        return new CollectiveException(
                "rank %s failed in %s: %s".formatted(rank, this, cause), cause);
    }

    /**
     * Returns the failure of a rank that was interrupted in this call.
     *
     * @param rank the rank, in the group of all ranks
     * @param cause the interrupt
     * @return the failure of the group
     */
    public CollectiveException interruptedOn(int rank, InterruptedException cause) {
        return new CollectiveException(
                "rank %s was interrupted in %s".formatted(rank, this), cause);
    }

    /**
     * Returns what is said of a rank that has waited too long in this call.
     *
     * @param timeout how long
     * @param rank the rank, in the group of all ranks
     * @param missing what it waits for, such as {@code rank 2}
     * @return a text
     */
    public String timedOut(Duration timeout, int rank, List<String> missing) {
        return "time-out after %s ms: rank %s waits in %s for %s"
                .formatted(timeout.toMillis(), rank, this, String.join(", ", missing));
    }

    /**
     * Returns what is said of ranks that called different operations: what each called, and what
     * may have led to it.
     *
     * @param calls what each rank called, such as {@code rank 0 barrier #3}
     * @return the calls, and what to look at
     */
    public static String describeDifference(List<String> calls) {
        String all = String.join("; ", calls);
        long terms =
                calls.stream()
                        .filter(call -> !call.endsWith(NOT_YET))
                        .map(
                                call ->
                                        call.contains(WITH)
                                                ? call.substring(call.lastIndexOf(WITH))
                                                : "")
                        .distinct()
                        .count();
        return ("the ranks called different operations: %s. Do all ranks have as many"
                        + " batches, of the same size, as many epochs, and the same"
                        + " settings?%s%s")
                .formatted(
                        all,
                        terms > 1
                                ? " Freeze and thaw the same parameters on all processes, before"
                                        + " the same step."
                                : "",
                        all.contains(CLOSE)
                                ? " One in "
                                        + CLOSE
                                        + " has come to its end before the others, or an exception"
                                        + " in the caller's code has led it there: see the output"
                                        + " of its process"
                                : "");
    }
}
