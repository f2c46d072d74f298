package io.djltp.collective.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.QueuedCommunicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.local.BlockReduction;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;

import java.time.Duration;
import java.util.Arrays;

/**
 * The {@code mpi} backend: CPU ranks of many processes and machines, one in each process, connected
 * by Open MPI.
 *
 * <p>MPI moves the tensors, and they are added here: a large all-reduce is an all-to-all of shares,
 * a sum and an all-gather. That is several times as fast as Open MPI's own non-blocking all-reduce,
 * knows 16-bit floating point numbers, and adds in the order of the ranks: results are those of the
 * {@code local} backend, bit for bit. MPI itself reduces small tensors where the order cannot show.
 *
 * <p>MPI does not notice that a process is gone or calls something else. Operations are therefore
 * non-blocking and given up when the group fails or the time is over, and before each the ranks
 * compare what they call.
 */
public final class MpiCommunicator extends QueuedCommunicator {

    /** Room in an {@code int} for what MPI adds to counts. */
    private static final long LIMIT = 1 << 30;

    /** What MPI reduces in no more time than it needs to send it. */
    private static final long SMALL_BYTES = 1 << 15;

    /** What a rank had rather receive at once, of all ranks together, than in two steps. */
    private static final long GATHERED_BYTES = 1 << 17;

    private final MpiWorld world;
    private final MpiPoller poller;
    private final MpiTransfers transfers;
    private final MpiAgreement agreement;
    private final boolean checked;
    private final long limit;
    private final MpiHandles handles;
    private final long handle;
    private final boolean whole; // not a part of another group
    private final MpiStaging staging;
    private final BlockReduction reduction;

    private MpiCommunicator(
            MpiWorld world,
            long handle,
            Duration timeout,
            GroupFailure failure,
            boolean checked,
            long limit) {
        super(world.getRank(), world.getSize(), timeout, failure);
        this.world = world;
        this.handle = handle;
        this.checked = checked;
        this.limit = limit;
        whole = true;
        handles = new MpiHandles(world);
        staging = new MpiStaging();
        reduction = new BlockReduction();
        poller = new MpiPoller(failure, getRank(), getSize());
        transfers = newTransfers();
        agreement = new MpiAgreement(transfers, getRank(), getSize());
        handles.add(handle);
        failure.onSet(() -> world.setUnclean("a group has failed: " + failure.get().getMessage()));
    }

    private MpiCommunicator(MpiCommunicator parent, int color, long handle, int rank, int size) {
        super(parent, color, rank, size);
        this.handle = handle;
        world = parent.world;
        checked = parent.checked;
        limit = parent.limit;
        handles = parent.handles;
        staging = parent.staging;
        reduction = parent.reduction;
        whole = false;
        poller = new MpiPoller(getFailure(), rank, size);
        transfers = newTransfers();
        agreement = new MpiAgreement(transfers, rank, size);
        handles.add(handle);
    }

    private MpiTransfers newTransfers() {
        return new MpiTransfers(world.getLibrary(), poller, handle, getRank(), getSize(), limit);
    }

    /**
     * Creates this process's end of the group of all processes. All processes call it.
     *
     * @param world the processes
     * @param timeout how long an operation may take, this one included
     * @param failure where the group's failure is kept
     * @return the communicator, to be closed before the world
     * @throws io.djltp.collective.CollectiveException if a process does not come in time
     */
    public static MpiCommunicator create(MpiWorld world, Duration timeout, GroupFailure failure) {
        return create(world, timeout, failure, true);
    }

    /**
     * Creates this process's end of the group of all processes. All processes call it, with the
     * same choice.
     *
     * @param world the processes
     * @param timeout how long an operation may take, this one included
     * @param failure where the group's failure is kept
     * @param checked whether the ranks compare what they call before each operation; without, ranks
     *     that call different operations get wrong results, or wait until the time-out
     * @return the communicator, to be closed before the world
     * @throws io.djltp.collective.CollectiveException if a process does not come in time
     */
    public static MpiCommunicator create(
            MpiWorld world, Duration timeout, GroupFailure failure, boolean checked) {
        return create(world, timeout, failure, checked, LIMIT);
    }

    /**
     * Creates this process's end of the group of all processes.
     *
     * @param limit how many elements one operation of MPI may have
     */
    static MpiCommunicator create(
            MpiWorld world, Duration timeout, GroupFailure failure, boolean checked, long limit) {
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("The time-out must be positive, not " + timeout);
        }
        long handle = world.duplicate(timeout, failure);
        world.returnErrors(handle);
        return new MpiCommunicator(world, handle, timeout, failure, checked, limit);
    }

    /** {@inheritDoc} */
    @Override
    protected void execute(CollectiveCall call) {
        poller.begin(call, getTimeout());
        try {
            if (checked && getSize() > 1) {
                agreement.check(call);
            }
            run(call);
        } finally {
            if (poller.isPending()) {
                keep(call);
            }
        }
    }

    private void run(CollectiveCall call) {
        switch (call.getCollective()) {
            case ALL_REDUCE:
                allReduce(call);
                break;
            case ALL_GATHER:
                allGather(call);
                break;
            case REDUCE_SCATTER:
                reduceScatter(call);
                break;
            case BROADCAST:
                TensorView tensor = call.getInput();
                transfers
                        .of(call.getDataType())
                        .broadcast(tensor.address(), tensor.size(), call.getRoot());
                break;
            case ALL_TO_ALL:
                allToAll(call);
                break;
            default:
                if (!checked) { // to compare is to wait for all
                    transfers.barrier();
                }
        }
    }

    /** What MPI may still write to is never freed: the caller will close its arrays. */
    private void keep(CollectiveCall call) {
        if (call.getInput() != null) {
            MpiWorld.keep(
                    new Tensor(call.getInput().tensor()).retainReference(),
                    new Tensor(call.getOutput().tensor()).retainReference());
        }
        MpiWorld.keep(this);
    }

    private void allReduce(CollectiveCall call) {
        Tensor tensor = flat(call.getInput());
        long size = tensor.numel();
        long address = call.getInput().address();
        if (size == 0) {
            return;
        }
        transfers.of(call.getDataType());
        boolean large = transfers.isLarge(size * getSize());
        if (!large && call.getBytes() <= SMALL_BYTES && isLeftToMpi(call)) {
            transfers.allReduce(address, size, call.getOp());
        } else if (!large && call.getBytes() * getSize() <= GATHERED_BYTES) {
            Tensor all = staging.take(tensor, size * getSize());
            transfers.allGather(address, address(all), size);
            reduction.reduce(rows(all, size), 0, size, call.getOp(), new Tensor[] {tensor}, 0);
        } else {
            long[] shares = new long[getSize()];
            Arrays.setAll(shares, i -> Cut.balanced(size, getSize()).getRange(i).length());
            ShardRange own = Cut.balanced(size, getSize()).getRange(getRank());
            reduce(call, tensor, tensor.narrow(0, own.start(), own.length()), shares);
            transfers.allGather(address, shares);
        }
    }

    /** Returns whether MPI reduces to the same bits, in whatever order it does. */
    private boolean isLeftToMpi(CollectiveCall call) {
        switch (call.getDataType()) {
            case FLOAT16: // MPI has no such types
            case BFLOAT16:
                return false;
            case INT32:
            case INT64:
                return true;
            default: // the largest of a number and NaN is MPI's choice
                return getSize() <= 2 && call.getOp() == ReduceOp.SUM;
        }
    }

    /** Sends every rank its share, and reduces what comes, in the order of the ranks. */
    private void reduce(CollectiveCall call, Tensor input, Tensor output, long[] shares) {
        long own = shares[getRank()];
        long largest = Arrays.stream(shares).max().orElse(0);
        Tensor all = staging.take(input, own * getSize());
        long[] received = new long[getSize()];
        Arrays.fill(received, own);
        transfers.allToAll(
                address(input),
                address(all),
                shares,
                received,
                largest,
                Math.max(input.numel(), largest * getSize()));
        reduction.reduce(rows(all, own), 0, own, call.getOp(), new Tensor[] {output}, 0);
    }

    private void reduceScatter(CollectiveCall call) {
        transfers.of(call.getDataType());
        reduce(call, flat(call.getInput()), flat(call.getOutput()), call.getShares());
    }

    /** MPI wants all ranks or none to gather in place; what it would copy is copied here. */
    private void allGather(CollectiveCall call) {
        long[] shares = call.getShares();
        long output = call.getOutput().address();
        long start = Arrays.stream(shares, 0, getRank()).sum();
        long place = output + start * call.getDataType().getNumOfBytes();
        if (shares[getRank()] > 0 && call.getInput().address() != place) {
            flat(call.getOutput()).narrow(0, start, shares[getRank()]).copy_(flat(call.getInput()));
        }
        transfers.of(call.getDataType()).allGather(output, shares);
    }

    private void allToAll(CollectiveCall call) {
        long[] sizes = agreement.exchangeCounts(call);
        transfers
                .of(call.getDataType())
                .allToAll(
                        call.getInput().address(),
                        call.getOutput().address(),
                        call.getShares(),
                        call.getReceivedShares(),
                        sizes[0],
                        sizes[1]);
    }

    private Tensor[] rows(Tensor all, long length) {
        Tensor[] rows = new Tensor[getSize()];
        Arrays.setAll(rows, i -> all.narrow(0, i * length, length));
        return rows;
    }

    private static Tensor flat(TensorView view) {
        return view.tensor().detach().view(-1);
    }

    private static long address(Tensor tensor) {
        return TensorView.of(tensor).address();
    }

    /**
     * {@inheritDoc}
     *
     * <p>MPI has no non-blocking split: the ranks meet before, so that it does not wait for one
     * that never comes.
     */
    @Override
    protected Communicator startSplit(CollectiveCall call, int color, int key) {
        long[] part = new long[1];
        int[] place = new int[2];
        submit(
                        call,
                        () -> {
                            execute(call);
                            split(color, key, part, place);
                        })
                .await();
        return new MpiCommunicator(this, color, part[0], place[0], place[1]);
    }

    private void split(int color, int key, long[] part, int[] place) {
        try (Memory memory = new Memory(Long.BYTES)) {
            long address = Pointer.nativeValue(memory);
            MpiLibrary.check(
                    MpiFunctions.MPI_Comm_split(handle, color, key, address), "MPI_Comm_split");
            part[0] = memory.getLong(0);
            MpiLibrary.check(MpiFunctions.MPI_Comm_rank(part[0], address), "MPI_Comm_rank");
            place[0] = memory.getInt(0);
            MpiLibrary.check(MpiFunctions.MPI_Comm_size(part[0], address), "MPI_Comm_size");
            place[1] = memory.getInt(0);
        }
        world.returnErrors(part[0]);
    }

    /**
     * Frees what the rank holds of the group, after the operations that it has called. If the group
     * has failed, MPI keeps it until the process ends.
     */
    @Override
    public void close() {
        super.close();
        if (!whole) {
            later(() -> handles.free(handle, getFailure()));
            return;
        }
        handles.freeAll(getFailure());
        if (!getFailure().isSet()) {
            reduction.close();
            staging.close();
        }
    }
}
