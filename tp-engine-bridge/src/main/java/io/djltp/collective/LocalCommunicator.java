package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.bridge.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;

/**
 * The {@code local} backend: ranks that are threads of one JVM and share its memory.
 *
 * <p>Every rank works on the part of the result that is its own and reads the others' tensors where
 * they lie, so that a reduction is done once and in the same order whatever the timing: results are
 * the same on all ranks, bit for bit, and from run to run. Operations are complete when their call
 * returns.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class LocalCommunicator implements Communicator {

    /** How long a rank waits for the others when nothing else is said. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    private static final Set<DataType> TYPES =
            EnumSet.of(
                    DataType.FLOAT32,
                    DataType.FLOAT64,
                    DataType.FLOAT16,
                    DataType.BFLOAT16,
                    DataType.INT32,
                    DataType.INT64);

    private final LocalRendezvous rendezvous;
    private final int rank;
    private final LocalReduction reduction = new LocalReduction();
    private long sequence;
    private CollectiveCounts counts = new CollectiveCounts();

    private LocalCommunicator(LocalRendezvous rendezvous, int rank) {
        this.rendezvous = rendezvous;
        this.rank = rank;
    }

    /**
     * Creates the communicators of a group with the default time-out.
     *
     * @param size the number of ranks
     * @return one communicator for each rank's thread
     */
    public static List<Communicator> create(int size) {
        return create(size, DEFAULT_TIMEOUT);
    }

    /**
     * Creates the communicators of a group.
     *
     * @param size the number of ranks
     * @param timeout how long a rank waits for the others in an operation before all give up
     * @return one communicator for each rank's thread
     */
    public static List<Communicator> create(int size, Duration timeout) {
        if (size < 1) {
            throw new IllegalArgumentException("A group needs 1 rank or more, not " + size);
        }
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("The time-out must be positive, not " + timeout);
        }
        LocalRendezvous rendezvous = new LocalRendezvous(size, timeout);
        List<Communicator> group = new ArrayList<>(size);
        for (int i = 0; i < size; i++) {
            group.add(new LocalCommunicator(rendezvous, i));
        }
        return group;
    }

    /** {@inheritDoc} */
    @Override
    public int getRank() {
        return rank;
    }

    /** {@inheritDoc} */
    @Override
    public int getSize() {
        return rendezvous.size();
    }

    /** {@inheritDoc} */
    @Override
    public Work allReduce(TensorView tensor, ReduceOp op) {
        checkTensor(Collective.ALL_REDUCE, tensor);
        String detail = " (" + op + ")";
        LocalCall call = new LocalCall(Collective.ALL_REDUCE, next(), detail, null, tensor, tensor);
        return run(
                call,
                tensor,
                calls -> {
                    Tensor[] all = new Tensor[calls.length];
                    for (int i = 0; i < all.length; i++) {
                        all[i] = calls[i].input.tensor().detach().view(-1);
                    }
                    ShardRange own = ShardRange.balanced(tensor.size(), rank, getSize());
                    reduction.reduce(all, own.start(), own.length(), op, all, own.start());
                });
    }

    /** {@inheritDoc} */
    @Override
    public Work allGather(TensorView input, TensorView output, long[] shares) {
        checkTensor(Collective.ALL_GATHER, input);
        checkTensor(Collective.ALL_GATHER, output);
        checkShares(Collective.ALL_GATHER, shares, input, output);
        LocalCall call = new LocalCall(Collective.ALL_GATHER, next(), "", shares, input, output);
        return run(
                call,
                input,
                calls -> {
                    Tensor to = output.tensor().detach().view(-1);
                    long start = 0;
                    for (int i = 0; i < shares.length; i++) {
                        Tensor place = to.narrow(0, start, shares[i]);
                        Tensor from = calls[i].input.tensor().detach().view(-1);
                        // in place: the rank's own share is where it belongs
                        if (shares[i] > 0 && !samePlace(from, place)) {
                            place.copy_(from);
                        }
                        start += shares[i];
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public Work reduceScatter(TensorView input, TensorView output, long[] shares, ReduceOp op) {
        checkTensor(Collective.REDUCE_SCATTER, input);
        checkTensor(Collective.REDUCE_SCATTER, output);
        checkShares(Collective.REDUCE_SCATTER, shares, output, input);
        String detail = " (" + op + ")";
        LocalCall call =
                new LocalCall(Collective.REDUCE_SCATTER, next(), detail, shares, input, output);
        return run(
                call,
                input,
                calls -> {
                    Tensor[] all = new Tensor[calls.length];
                    for (int i = 0; i < all.length; i++) {
                        all[i] = calls[i].input.tensor().detach().view(-1);
                    }
                    long start = Arrays.stream(shares, 0, rank).sum();
                    Tensor[] to = {output.tensor().detach().view(-1)};
                    reduction.reduce(all, start, shares[rank], op, to, 0);
                });
    }

    /** {@inheritDoc} */
    @Override
    public Work broadcast(TensorView tensor, int root) {
        checkTensor(Collective.BROADCAST, tensor);
        if (root < 0 || root >= getSize()) {
            throw new IllegalArgumentException(
                    "The root of a broadcast must be a rank from 0 to "
                            + (getSize() - 1)
                            + ", not "
                            + root);
        }
        String detail = " from rank " + root;
        LocalCall call = new LocalCall(Collective.BROADCAST, next(), detail, null, tensor, tensor);
        return run(
                call,
                tensor,
                calls -> {
                    if (rank != root) {
                        tensor.tensor().detach().copy_(calls[root].input.tensor().detach());
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public void barrier() {
        if (getSize() > 1) {
            rendezvous.meet(rank, new LocalCall(Collective.BARRIER, next(), "", null, null, null));
            counts = counts.plus(Collective.BARRIER, 0);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void abort(Throwable cause) {
        rendezvous.fail(new CollectiveException("the group was aborted: " + cause, cause));
    }

    /** {@inheritDoc} */
    @Override
    public CollectiveCounts getCounts() {
        return counts;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        reduction.close();
    }

    private long next() {
        return ++sequence;
    }

    private Work run(LocalCall call, TensorView sent, Consumer<LocalCall[]> part) {
        LocalCall[] calls = rendezvous.meet(rank, call);
        try (PointerScope scope = new PointerScope()) {
            part.accept(calls);
        } catch (RuntimeException | Error e) {
            rendezvous.fail(
                    new CollectiveException("rank " + rank + " failed in " + call + ": " + e, e));
        }
        rendezvous.leave(rank);
        if (getSize() > 1) {
            long bytes = sent.size() * sent.getDataType().getNumOfBytes();
            counts = counts.plus(call.getCollective(), bytes);
        }
        return Work.DONE;
    }

    private static boolean samePlace(Tensor a, Tensor b) {
        return TensorView.of(a).address() == TensorView.of(b).address();
    }

    private void checkTensor(Collective collective, TensorView tensor) {
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

    private void checkShares(
            Collective collective, long[] shares, TensorView own, TensorView whole) {
        long sum = Arrays.stream(shares).sum();
        if (shares.length != getSize()
                || Arrays.stream(shares).anyMatch(share -> share < 0)
                || shares[rank] != own.size()
                || sum != whole.size()) {
            throw new IllegalArgumentException(
                    collective
                            + ": the shares "
                            + Arrays.toString(shares)
                            + " do not fit "
                            + getSize()
                            + " ranks, "
                            + own
                            + " as the share of rank "
                            + rank
                            + " and "
                            + whole
                            + " as the whole");
        }
        if (own.getDataType() != whole.getDataType()) {
            throw new IllegalArgumentException(
                    collective + " of " + own + " and " + whole + ": the data types differ");
        }
    }
}
