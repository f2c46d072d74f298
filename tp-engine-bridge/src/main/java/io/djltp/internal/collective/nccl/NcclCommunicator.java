package io.djltp.internal.collective.nccl;

import ai.djl.Device;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.Work;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.cuda.nccl.ncclUniqueId;
import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * The {@code nccl} backend: ranks with a GPU each, in one process or in many.
 *
 * <p>An operation is queued on a communication stream of the rank's own, behind what the calling
 * thread's current stream has queued so far; {@link Work#await()} makes the current stream wait for
 * it, and the calling thread goes on. That stream is libtorch's, by default the GPU's default
 * stream. An operation that fails is therefore found out by a later call, at the latest by a
 * barrier. Where a GPU reaches ordinary host memory, as on Grace Hopper, tensors of the CPU may
 * take part too: then {@link Work#await()} blocks until the operation is done.
 *
 * <p>A group and the parts that it was split into have a communicator of NCCL each, and one stream:
 * kernels of two communicators that ran at once could each hold what the other waits for. They run
 * in the order of the rank's calls instead, which must fit those of the other ranks, see {@link
 * Communicator#split}.
 *
 * <p>NCCL computes 16-bit sums in steps that are rounded each, in an order of its own, and its MAX
 * and MIN may drop what is not a number. It does not compare what the ranks call: ranks that
 * disagree end in a time-out at best. {@code NCCL_CHECK_MODE=DEBUG_GLOBAL} makes it look.
 *
 * <p>When the group fails or is aborted, all communicators of this process are aborted, so that
 * nothing stays behind on the GPUs; ranks of other processes find out by their time-out.
 */
public final class NcclCommunicator extends AbstractCommunicator {

    private static volatile boolean ordersOnStream; // for tests without a GPU

    private final NcclEndpoint endpoint;
    private final ncclComm comm;
    private final NcclOperations operations;
    private final boolean isPart;

    private NcclCommunicator(int rank, int size, NcclGroup group, NcclEndpoint to, ncclComm comm) {
        super(rank, size, group.getFailure());
        this.comm = comm;
        endpoint = to;
        operations = new NcclOperations(comm, rank);
        isPart = false;
    }

    private NcclCommunicator(
            NcclCommunicator parent, int color, int rank, int size, ncclComm comm) {
        super(parent, color, rank, size);
        this.comm = comm;
        endpoint = parent.endpoint;
        operations = new NcclOperations(comm, rank);
        isPart = true;
    }

    /**
     * Creates the id under which the ranks of one new group meet. One rank creates it and gives it
     * to all others.
     *
     * @return the id, {@link NcclLibrary#UNIQUE_ID_BYTES} bytes
     */
    public static byte[] newUniqueId() {
        NcclLibrary.load();
        try (ncclUniqueId id = new ncclUniqueId()) {
            Cuda.checkNccl(nccl.ncclGetUniqueId(id), "ncclGetUniqueId");
            byte[] bytes = new byte[NcclLibrary.UNIQUE_ID_BYTES];
            id.internal().get(bytes);
            return bytes;
        }
    }

    /**
     * Says why {@link #create} would refuse the ranks of this process. Never throws.
     *
     * @param firstRank the first rank of this process; the others follow
     * @param devices the device of each rank of this process
     * @return the reason, or nothing if NCCL and a GPU for each rank are there
     */
    public static Optional<String> whyNot(int firstRank, List<Device> devices) {
        return NcclLibrary.whyNot()
                .or(() -> Optional.ofNullable(assign(firstRank, devices, new int[devices.size()])));
    }

    /**
     * Creates the communicators of this process's ranks, and waits until all ranks of the group
     * have come.
     *
     * @param uniqueId the id under which the ranks meet
     * @param size the number of ranks in the group
     * @param firstRank the first rank of this process; the others follow
     * @param devices the device of each rank of this process: a GPU of its own. For the CPU, if the
     *     GPUs reach host memory, the GPUs are taken in the order of the ranks
     * @param timeout how long a rank waits for the others, here and in an operation
     * @return one communicator for each rank's thread
     * @throws CollectiveException if the group cannot be formed
     */
    public static List<NcclCommunicator> create(
            byte[] uniqueId, int size, int firstRank, List<Device> devices, Duration timeout) {
        checkRanks(uniqueId, size, firstRank, devices.size(), timeout);
        LibTorch.load();
        NcclLibrary.load();
        int[] gpus = new int[devices.size()];
        String refusal = assign(firstRank, devices, gpus);
        if (refusal != null) {
            throw new IllegalArgumentException(refusal);
        }
        NcclGroup group = new NcclGroup(size, timeout);
        ncclComm[] comms = group.connect(uniqueId, firstRank, gpus);
        List<NcclCommunicator> ranks = new ArrayList<>();
        int device = Cuda.currentOrNone();
        try {
            for (int i = 0; i < gpus.length; i++) {
                NcclEndpoint endpoint = new NcclEndpoint(group, firstRank + i, gpus[i], comms[i]);
                NcclCommunicator rank =
                        new NcclCommunicator(firstRank + i, size, group, endpoint, comms[i]);
                group.add(endpoint, rank.getRecorder());
                ranks.add(rank);
            }
        } catch (CollectiveException e) {
            group.getFailure().set(e); // aborts those that have been added
            ranks.forEach(NcclCommunicator::close);
            NcclGroup.abort(Arrays.asList(comms).subList(ranks.size(), comms.length));
            throw e;
        } finally {
            Cuda.restore(device);
        }
        group.startWatch();
        return ranks;
    }

    private static void checkRanks(
            byte[] uniqueId, int size, int firstRank, int local, Duration timeout) {
        if (uniqueId.length != NcclLibrary.UNIQUE_ID_BYTES) {
            throw Errors.argument(
                    "A unique id has %s bytes, not %s: pass on what newUniqueId() has returned",
                    NcclLibrary.UNIQUE_ID_BYTES, uniqueId.length);
        }
        if (local < 1 || firstRank < 0 || firstRank + local > size) {
            throw Errors.argument(
                    "This process cannot hold %s ranks from rank %s of a group of %s: the ranks are"
                            + " numbered from 0 to one less than the size",
                    local, firstRank, size);
        }
        if (timeout.isNegative() || timeout.isZero()) {
            throw Errors.argument("The time-out must be positive, not %s", timeout);
        }
    }

    /** Lets operations on host memory behave as those on a GPU's, or no longer: for tests. */
    static void orderOnStream(boolean order) {
        ordersOnStream = order;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isAsynchronous() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    protected String getBackend() {
        return "nccl";
    }

    /** {@inheritDoc} */
    @Override
    protected Work start(CollectiveCall call) {
        if (NcclOperations.isEmpty(call)) {
            call.finish();
            return Work.DONE;
        }
        boolean isBarrier = call.getCollective() == Collective.BARRIER;
        boolean onGpu = !isBarrier && isOnGpu(call);
        NcclWork work = new NcclWork(endpoint, call, onGpu);
        guard(
                call,
                () ->
                        endpoint.issue(
                                work,
                                comm,
                                stream ->
                                        isBarrier
                                                ? operations.barrier(endpoint.scratch, stream)
                                                : operations.queue(call, stream)));
        return work;
    }

    private boolean isOnGpu(CollectiveCall call) {
        boolean input = checkPlace(call, call.getInput());
        boolean output = checkPlace(call, call.getOutput());
        return input || output || ordersOnStream;
    }

    private boolean checkPlace(CollectiveCall call, TensorView tensor) {
        Device device = tensor.getDevice();
        boolean onGpu = !Device.Type.CPU.equals(device.getDeviceType());
        if (onGpu
                ? device.getDeviceId() != endpoint.device
                : !endpoint.reachesHostMemory && tensor.size() > 0) {
            throw Errors.argument(
                    "%s: the tensor is on %s, which GPU %s of rank %s does not work on: copy it to"
                            + " %s",
                    call, device, endpoint.device, getWorldRank(), Device.gpu(endpoint.device));
        }
        return onGpu;
    }

    /** A failure on the way ends the group. */
    private void guard(CollectiveCall call, Runnable action) {
        try {
            action.run();
        } catch (CollectiveException e) {
            getFailure()
                    .set(
                            new CollectiveException(
                                    "rank %s failed in %s: %s"
                                            .formatted(getWorldRank(), call, e.getMessage()),
                                    e));
            checkFailure();
        }
    }

    /** {@inheritDoc} */
    @Override
    protected NcclCommunicator startSplit(CollectiveCall call, int color, int key) {
        NcclWork work = new NcclWork(endpoint, call, false);
        guard(call, () -> endpoint.call(work, comm, () -> endpoint.split(comm, color, key)));
        ncclComm part = endpoint.takePart();
        checkFailure();
        if (part == null) {
            throw new CollectiveException("the rank was closed in " + call);
        }
        int[] rank = new int[1];
        int[] size = new int[1];
        guard(
                call,
                () -> {
                    endpoint.call(work, part, () -> nccl.ncclCommUserRank(part, rank));
                    endpoint.call(work, part, () -> nccl.ncclCommCount(part, size));
                });
        return new NcclCommunicator(this, color, rank[0], size[0], part);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        int before = Cuda.currentOrNone(); // the thread need not be the rank's
        try {
            if (isPart) {
                endpoint.close(comm);
            } else {
                endpoint.close();
            }
        } finally {
            Cuda.restore(before);
            super.close();
        }
    }

    /**
     * Finds out which GPU each rank of this process works on: the one that it was given, or, for
     * ranks on the CPU, one after another.
     *
     * @param firstRank the first rank of this process
     * @param devices the devices that the ranks were given
     * @param gpus where the numbers of the GPUs go
     * @return why there is not a GPU for each rank, or {@code null} if there is
     */
    private static @Nullable String assign(int firstRank, List<Device> devices, int[] gpus) {
        int count = NcclLibrary.deviceCount();
        Set<Integer> taken = new HashSet<>();
        for (int i = 0; i < gpus.length; i++) {
            Device device = devices.get(i);
            String rank = "Rank " + (firstRank + i);
            boolean isCpu = Device.Type.CPU.equals(device.getDeviceType());
            int gpu = isCpu ? (firstRank + i) % Math.max(1, count) : device.getDeviceId();
            if (gpu >= count) {
                return ("%s cannot work on GPU %s: this process sees %s GPUs, numbered from"
                                + " 0; use fewer ranks, or check CUDA_VISIBLE_DEVICES")
                        .formatted(rank, gpu, count);
            }
            if (!taken.add(gpu)) {
                return ("%s cannot share GPU %s with another rank, NCCL needs one for each:"
                                + " this process sees %s GPUs for %s ranks; use fewer ranks, or"
                                + " the local backend on the CPU")
                        .formatted(rank, gpu, count, gpus.length);
            }
            if (isCpu && !NcclLibrary.reachesHostMemory(gpu)) {
                return ("%s cannot work on cpu(): GPU %s does not reach host memory; give"
                                + " the rank Device.gpu(%s) or use the backend local or tcp")
                        .formatted(rank, gpu, gpu);
            }
            gpus[i] = gpu;
        }
        return null;
    }
}
