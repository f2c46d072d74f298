package io.djltp.internal.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.internal.Errors;
import io.djltp.internal.events.CollectiveEvent;
import io.djltp.internal.events.FlightEvents;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;

/**
 * What all backends share: a rank's place in its group, the checks of arguments, and the numbering,
 * counting and recording of calls. A backend carries out a {@link CollectiveCall}.
 */
public abstract class AbstractCommunicator implements Communicator {

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
    private final AbstractCommunicator world; // the rank's end of the group of all ranks
    private final String name;
    private final GroupFailure failure;
    private final FlightRecorder recorder;
    private volatile String terms = ""; // of all groups of the rank: that of the world counts
    private Runnable closing = () -> {};
    private @Nullable String issuer;
    private long sequence;
    private String splitGroups = ""; // what the groups of the last split are
    private CollectiveCounts counts = new CollectiveCounts();

    /**
     * Creates a rank's end of the group of all ranks.
     *
     * @param rank the rank
     * @param size the number of ranks
     * @param failure where the group's failure is kept
     */
    protected AbstractCommunicator(int rank, int size, GroupFailure failure) {
        this.rank = rank;
        this.size = size;
        this.failure = failure;
        world = this;
        name = "";
        recorder = new FlightRecorder();
    }

    /**
     * Creates a rank's end of a part of a group.
     *
     * @param parent the rank's end of the group that was split; the part shares its failure and its
     *     record
     * @param color the color of the part
     * @param rank the rank in the part
     * @param size the number of ranks in the part
     */
    protected AbstractCommunicator(AbstractCommunicator parent, int color, int rank, int size) {
        this.rank = rank;
        this.size = size;
        world = parent.world;
        failure = parent.failure;
        recorder = parent.recorder;
        issuer = parent.issuer;
        // the number tells groups of the same ranks apart
        String part = "part " + color + " of split #" + parent.sequence + parent.splitGroups;
        name = (parent.name.isEmpty() ? "" : parent.name + ", ") + part;
    }

    /**
     * Returns what the library knows of a communicator, and users do not need.
     *
     * @param communicator one that a backend has created
     * @return the same
     */
    public static AbstractCommunicator of(Communicator communicator) {
        return (AbstractCommunicator) communicator;
    }

    /**
     * Carries out an operation, or begins to.
     *
     * @param call the operation, whose arguments have been checked; {@link CollectiveCall#finish()}
     *     is to be called when it is complete
     * @return the work
     */
    protected abstract Work start(CollectiveCall call);

    /**
     * Returns the name of the backend.
     *
     * @return the name, in lower case
     */
    protected abstract String getBackend();

    /**
     * Forms the part of the group that this rank belongs to.
     *
     * @param call the call, for errors
     * @param color the color of the part
     * @param key the order of the ranks in the part
     * @return the rank's end of the part
     */
    protected abstract AbstractCommunicator startSplit(CollectiveCall call, int color, int key);

    /** {@inheritDoc} */
    @Override
    public final int getRank() {
        return rank;
    }

    /** {@inheritDoc} */
    @Override
    public final int getSize() {
        return size;
    }

    /** {@inheritDoc} */
    @Override
    public final void setIssuer(@Nullable String issuer) {
        this.issuer = issuer;
    }

    /**
     * Says something that the ranks must agree on, such as which parameters they train. It goes
     * with all operations of the rank from here on, in all of its groups: ranks that have said
     * otherwise have called different operations. NCCL looks at calls only that it does not
     * complete.
     *
     * @param terms a short text, or empty
     */
    public final void setAgreement(String terms) {
        world.terms = terms;
    }

    /**
     * Returns the record of the rank's last operations.
     *
     * @return the record
     */
    public final FlightRecorder getRecorder() {
        return recorder;
    }

    /** {@inheritDoc} */
    @Override
    public final CollectiveCounts getCounts() {
        return counts;
    }

    /**
     * Returns where the group's failure is kept.
     *
     * @return the failure, set or not
     */
    public final GroupFailure getFailure() {
        return failure;
    }

    /**
     * Throws the failure of the group, if there is one.
     *
     * @throws CollectiveException the failure, as this rank's
     */
    protected final void checkFailure() {
        failure.check(world.rank, world.size);
    }

    /**
     * Returns the rank's number in the group of all ranks, by which errors name it.
     *
     * @return the rank
     */
    protected final int getWorldRank() {
        return world.rank;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isAsynchronous() {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    public final Work allReduce(TensorView tensor, ReduceOp op) {
        checkTensor(Collective.ALL_REDUCE, tensor);
        return issue(next(Collective.ALL_REDUCE).with(tensor, tensor).with(op));
    }

    /** {@inheritDoc} */
    @Override
    public final Work allGather(TensorView input, TensorView output, long[] shares) {
        checkShares(Collective.ALL_GATHER, shares, input, output);
        return issue(next(Collective.ALL_GATHER).with(input, output).withShares(shares, null));
    }

    /** {@inheritDoc} */
    @Override
    public final Work reduceScatter(
            TensorView input, TensorView output, long[] shares, ReduceOp op) {
        Collective collective = Collective.REDUCE_SCATTER;
        checkShares(collective, shares, output, input);
        return issue(next(collective).with(input, output).withShares(shares, null).with(op));
    }

    /** {@inheritDoc} */
    @Override
    public final Work broadcast(TensorView tensor, int root) {
        checkTensor(Collective.BROADCAST, tensor);
        if (root < 0 || root >= size) {
            throw Errors.argument(
                    "The root of a broadcast must be a rank from 0 to %s, not %s", size - 1, root);
        }
        return issue(next(Collective.BROADCAST).with(tensor, tensor).withRoot(root));
    }

    /** {@inheritDoc} */
    @Override
    public final Work allToAll(
            TensorView input, TensorView output, long[] inputCounts, long[] outputCounts) {
        Collective collective = Collective.ALL_TO_ALL;
        checkTensor(collective, input);
        checkTensor(collective, output);
        checkParts("sent", inputCounts, input);
        checkParts("received", outputCounts, output);
        checkTypes(collective, input, output);
        if (inputCounts[rank] != outputCounts[rank]) {
            throw Errors.argument(
                    "all-to-all: rank %s sends %s elements to itself and expects %s: the two must"
                            + " be the same",
                    rank, inputCounts[rank], outputCounts[rank]);
        }
        return issue(next(collective).with(input, output).withShares(inputCounts, outputCounts));
    }

    /** {@inheritDoc} */
    @Override
    public final void barrier() {
        issue(next(Collective.BARRIER)).await();
    }

    /** {@inheritDoc} */
    @Override
    public final Communicator split(int color, int key, String groups) {
        Errors.check(color >= 0, "The color of a split must be 0 or more, not %s", color);
        CollectiveCall call = next(Collective.SPLIT);
        record(call);
        checkFailure();
        splitGroups = groups.isEmpty() ? "" : " (" + groups + ")";
        AbstractCommunicator part = startSplit(call, color, key);
        call.finish();
        count(call);
        return part;
    }

    /** {@inheritDoc} */
    @Override
    public void abort(Throwable cause) {
        failure.set(new CollectiveException("the group was aborted: " + cause, cause));
    }

    /**
     * Sets what is done when this end of the group is closed.
     *
     * @param task the task, which may be run several times
     */
    public final void onClose(Runnable task) {
        closing = task;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        closing.run();
    }

    private CollectiveCall next(Collective collective) {
        return new CollectiveCall(collective, ++sequence, name, issuer, world.terms);
    }

    private Work issue(CollectiveCall call) {
        record(call);
        checkFailure();
        boolean timed = recorder.hasListeners();
        long begin = timed ? System.nanoTime() : 0;
        Work work = start(call);
        if (timed) {
            call.addBlocked(System.nanoTime() - begin);
        }
        count(call);
        return timed ? () -> awaitTimed(call, work) : work;
    }

    private void record(CollectiveCall call) {
        recorder.add(call);
        boolean recorded = size > 1 && FlightEvents.areUsed();
        if (recorded || recorder.hasListeners()) {
            call.watch(recorded ? eventOf(call) : null);
        }
    }

    private CollectiveEvent eventOf(CollectiveCall call) {
        return new CollectiveEvent(
                world.rank,
                recorder.getDirection().toString(),
                getBackend(),
                call.getCollective().toString(),
                call.getBytes(),
                call.getIssuer(),
                name,
                size,
                call.getSequence());
    }

    private static void awaitTimed(CollectiveCall call, Work work) {
        long begin = System.nanoTime();
        try {
            work.await();
        } finally {
            call.addBlocked(System.nanoTime() - begin);
        }
    }

    private void count(CollectiveCall call) {
        if (size > 1) {
            counts = counts.plus(call.getCollective(), call.getBytes());
            recorder.notifyListeners(call, size);
        }
    }

    private static void checkTensor(Collective collective, TensorView tensor) {
        if (!TYPES.contains(tensor.getDataType())) {
            throw Errors.argument(
                    "%s does not take %s, only the types %s", collective, tensor, TYPES);
        }
        if (!tensor.isContiguous()) {
            throw Errors.argument(
                    "%s needs a contiguous tensor, but this one of %s is not: copy it first",
                    collective, tensor);
        }
    }

    /**
     * Checks an operation between the shares of all ranks and what they make up.
     *
     * @param shares the elements of each rank's share
     * @param share this rank's share
     * @param all the shares of all ranks, one after another
     */
    private void checkShares(
            Collective collective, long[] shares, TensorView share, TensorView all) {
        checkTensor(collective, share);
        checkTensor(collective, all);
        if (!areShares(shares, all) || shares[rank] != share.size()) {
            throw Errors.argument(
                    "%s: the shares %s do not fit %s ranks, %s as the share of rank %s and %s as"
                            + " the whole",
                    collective, Arrays.toString(shares), size, share, rank, all);
        }
        checkTypes(collective, share, all);
    }

    /**
     * Returns a tensor outside the graph, as one axis.
     *
     * @param view the tensor
     * @return its elements
     */
    protected static Tensor flat(TensorView view) {
        return view.tensor().detach().view(-1);
    }

    private void checkParts(String direction, long[] parts, TensorView tensor) {
        if (!areShares(parts, tensor)) {
            throw Errors.argument(
                    "all-to-all: the parts %s %s do not fit %s ranks and %s",
                    direction, Arrays.toString(parts), size, tensor);
        }
    }

    private boolean areShares(long[] shares, TensorView whole) {
        return shares.length == size
                && Arrays.stream(shares).allMatch(share -> share >= 0)
                && Arrays.stream(shares).sum() == whole.size();
    }

    private static void checkTypes(Collective collective, TensorView first, TensorView second) {
        if (first.getDataType() != second.getDataType()) {
            throw Errors.argument(
                    "%s of %s and %s: the data types differ", collective, first, second);
        }
    }
}
