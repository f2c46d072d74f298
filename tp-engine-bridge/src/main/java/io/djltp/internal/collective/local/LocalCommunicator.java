package io.djltp.internal.collective.local;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.Work;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.collective.GroupFailure;

import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.nio.FloatBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;

/**
 * The {@code local} backend: ranks that are threads of one JVM and share its memory.
 *
 * <p>Every rank works on the part of the result that is its own and reads the others' tensors where
 * they lie, so that a reduction is done once and in the same order whatever the timing: results are
 * the same on all ranks, bit for bit, and from run to run. Of a few kilobytes, every rank computes
 * the whole result, in the same order. Operations are complete when their call returns.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class LocalCommunicator extends AbstractCommunicator {

    /** How long a rank waits for the others when nothing else is said. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMinutes(5);

    private static final int SHORT = 1 << 10; // elements of a rank

    private final LocalBarrier barrier;
    private final BlockReduction reduction = new BlockReduction();
    private final SmallMessages small;
    private final AtomicBoolean closed = new AtomicBoolean();

    private LocalCommunicator(LocalBarrier barrier, int rank) {
        super(rank, barrier.ranks.length, barrier.failure);
        this.barrier = barrier;
        small = new SmallMessages(rank, barrier.mailboxes);
    }

    private LocalCommunicator(LocalCommunicator parent, int color, LocalBarrier barrier, int rank) {
        super(parent, color, rank, barrier.ranks.length);
        this.barrier = barrier;
        small = new SmallMessages(rank, barrier.mailboxes);
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
        Errors.check(size >= 1, "A group needs 1 rank or more, not %s", size);
        if (timeout.isNegative() || timeout.isZero()) {
            throw Errors.argument("The time-out must be positive, not %s", timeout);
        }
        int[] ranks = IntStream.range(0, size).toArray();
        LocalBarrier barrier = new LocalBarrier(ranks, size, timeout, new GroupFailure());
        List<Communicator> group = new ArrayList<>(size);
        for (int i = 0; i < size; i++) {
            group.add(new LocalCommunicator(barrier, i));
        }
        return group;
    }

    /** {@inheritDoc} */
    @Override
    protected String getBackend() {
        return "local";
    }

    /** {@inheritDoc} */
    @Override
    protected Work start(CollectiveCall call) {
        if (small.isSmall(call)) {
            small.put(call);
            barrier.meet(getRank(), call);
            small.finish(call);
            call.finish();
            return Work.DONE;
        }
        boolean sends = call.getCollective() != Collective.BARRIER;
        try (PointerScope scope = new PointerScope()) { // to be closed when the others have read
            if (sends) {
                barrier.inputs[getRank()] = flat(call.getInput());
                if (isShort(call)) {
                    FloatPointer floats = new FloatPointer(barrier.inputs[getRank()].data_ptr());
                    barrier.floats[getRank()] = floats.capacity(call.getInput().size()).asBuffer();
                }
            }
            CollectiveCall[] calls = barrier.meet(getRank(), call);
            if (sends) {
                try {
                    carryOut(call, calls);
                } catch (RuntimeException | Error e) {
                    barrier.failure.set(call.failedOn(getWorldRank(), e));
                } finally {
                    barrier.leave(getRank()); // the others wait for it, whatever was thrown
                }
            }
        }
        call.finish();
        return Work.DONE;
    }

    private void carryOut(CollectiveCall call, CollectiveCall[] calls) {
        switch (call.getCollective()) {
            case ALL_REDUCE -> allReduce(call);
            case ALL_GATHER -> allGather(call);
            case REDUCE_SCATTER -> reduceScatter(call);
            case BROADCAST -> {
                if (getRank() != call.getRoot()) {
                    BlockReduction.copy(barrier.inputs[call.getRoot()], flat(call.getOutput()));
                }
            }
            case ALL_TO_ALL -> allToAll(call, calls);
            default -> throw Errors.argument("Not an operation on tensors: %s", call);
        }
    }

    /** Returns whether an operation of libtorch would take longer than what it computes. */
    private boolean isShort(CollectiveCall call) {
        long share = call.getInput().size() / getSize();
        return call.getCollective() == Collective.ALL_REDUCE
                && call.getDataType() == DataType.FLOAT32
                && share > 0
                && share <= SHORT;
    }

    private void allReduce(CollectiveCall call) {
        Tensor[] all = barrier.inputs;
        ShardRange share = ShardRange.balanced(call.getInput().size(), getRank(), getSize());
        if (isShort(call)) {
            int start = (int) share.start();
            int length = (int) share.length();
            float[] sum = small.reduceFloats(barrier.floats, start, length, call.getOp());
            for (FloatBuffer to : barrier.floats) {
                to.put(start, sum, 0, length);
            }
            return;
        }
        reduction.reduce(all, share.start(), share.length(), call.getOp(), all, share.start());
    }

    private void allGather(CollectiveCall call) {
        Tensor to = flat(call.getOutput());
        long start = 0;
        for (int i = 0; i < getSize(); i++) {
            long share = call.getShares()[i];
            BlockReduction.copy(barrier.inputs[i], to.narrow(0, start, share));
            start += share;
        }
    }

    private void reduceScatter(CollectiveCall call) {
        long[] shares = call.getShares();
        long start = Arrays.stream(shares, 0, getRank()).sum();
        Tensor[] to = {flat(call.getOutput())};
        reduction.reduce(barrier.inputs, start, shares[getRank()], call.getOp(), to, 0);
    }

    private void allToAll(CollectiveCall call, CollectiveCall[] calls) {
        Tensor to = flat(call.getOutput());
        long start = 0;
        for (int i = 0; i < calls.length; i++) {
            long expected = call.getReceivedShares()[i];
            long sent = calls[i].getShares()[getRank()];
            if (sent != expected) {
                throw new CollectiveException(
                        "rank %s sends %s elements to rank %s, which expects %s"
                                .formatted(barrier.ranks[i], sent, getWorldRank(), expected));
            }
            long from = Arrays.stream(calls[i].getShares(), 0, getRank()).sum();
            BlockReduction.copy(barrier.inputs[i].narrow(0, from, sent), to.narrow(0, start, sent));
            start += sent;
        }
    }

    /** {@inheritDoc} */
    @Override
    protected LocalCommunicator startSplit(CollectiveCall call, int color, int key) {
        LocalBarrier.Part part = barrier.split(getRank(), call, color, key);
        return new LocalCommunicator(this, color, part.barrier(), part.rank());
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (closed.compareAndSet(false, true)) {
            reduction.close();
            barrier.close();
            super.close();
        }
    }
}
