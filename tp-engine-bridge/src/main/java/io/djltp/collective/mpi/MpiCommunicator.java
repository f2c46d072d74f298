package io.djltp.collective.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.QueuedCommunicator;
import io.djltp.collective.local.BlockReduction;

import org.bytedeco.pytorch.Tensor;

import java.time.Duration;

/**
 * The {@code mpi} backend: CPU ranks of many processes and machines, one in each process, connected
 * by Open MPI.
 *
 * <p>Sums are taken in the order of the ranks: results are those of the {@code local} backend, bit
 * for bit.
 *
 * <p>MPI does not notice that a process is gone or calls something else. Operations are therefore
 * non-blocking and given up when the group fails or the time is over, and before each the ranks
 * compare what they call.
 */
public final class MpiCommunicator extends QueuedCommunicator {

    /** Room in an {@code int} for what MPI adds to counts. */
    private static final long LIMIT = 1 << 30;

    private final MpiWorld world;
    private final MpiPoller poller;
    private final MpiAlgorithms algorithms;
    private final MpiAgreement agreement;
    private final boolean checked;
    private final long limit;
    private final MpiHandles handles;
    private final long handle;
    private final boolean ownsMemory; // and is not a part of another group
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
        ownsMemory = true;
        handles = new MpiHandles(world);
        staging = new MpiStaging();
        reduction = new BlockReduction();
        poller = new MpiPoller(failure, getRank(), getSize());
        MpiTransfers transfers = newTransfers();
        agreement = new MpiAgreement(transfers, getRank(), getSize());
        algorithms = new MpiAlgorithms(transfers, agreement, staging, reduction, checked);
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
        ownsMemory = false;
        poller = new MpiPoller(getFailure(), getWorldRank(), getWorldSize());
        MpiTransfers transfers = newTransfers();
        agreement = new MpiAgreement(transfers, rank, size);
        algorithms = new MpiAlgorithms(transfers, agreement, staging, reduction, checked);
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
            algorithms.run(call);
        } finally {
            if (poller.isPending()) {
                keep(call);
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

    /**
     * {@inheritDoc}
     *
     * <p>MPI has no non-blocking split: the ranks meet before, so that it does not wait for one
     * that never comes.
     */
    @Override
    protected MpiCommunicator startSplit(CollectiveCall call, int color, int key) {
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
        if (!ownsMemory) {
            runInTurn(() -> handles.free(handle, getFailure()));
            return;
        }
        handles.freeAll(getFailure());
        if (!getFailure().isSet()) {
            reduction.close();
            staging.close();
        }
    }
}
