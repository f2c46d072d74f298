package io.djltp.internal.collective.nccl;

import io.djltp.collective.Collective;
import io.djltp.internal.libtorch.LibTorch;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.pytorch.Device;
import org.bytedeco.pytorch.DeviceGuardImplInterface;
import org.bytedeco.pytorch.Stream;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DeviceType;
import org.jspecify.annotations.Nullable;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.function.BiConsumer;

/**
 * The communication stream of a rank and the operations on it, each with the event that tells its
 * end. Used under the lock of the rank's {@link NcclEndpoint}, except where said.
 *
 * <p>An operation follows what the calling thread's current stream has queued. DJL has no streams,
 * so that is the default stream of the GPU unless someone has changed it through libtorch. The
 * preset on the class path has no CUDA part, but libtorch's virtual interface to it, which every
 * libtorch has, is enough: it records our events on the current stream, and makes the current
 * stream wait for them, whichever stream that is.
 */
final class OperationQueue {

    /** Where the operations are queued. */
    final CUstream_st stream = new CUstream_st();

    private final int device;
    private final Deque<CUevent_st> free = new ArrayDeque<>(); // events, to be used again
    private final Deque<NcclWork> pending = new ArrayDeque<>();

    // for the watch, which must not wait for a thread that is stuck in a call
    private volatile @Nullable NcclWork issuing;
    private volatile @Nullable NcclWork oldest;
    private volatile boolean stopped;
    private volatile long lastCompletion =
            System.nanoTime(); // when an operation was last seen to end

    /** Creates the queue on the calling thread's GPU, where it goes before what is computed. */
    OperationQueue(int device) {
        this.device = device;
        int[] least = new int[1];
        int[] greatest = new int[1];
        Cuda.check(
                cudart.cudaDeviceGetStreamPriorityRange(least, greatest),
                "cudaDeviceGetStreamPriorityRange on GPU " + device);
        Cuda.check(
                cudart.cudaStreamCreateWithPriority(
                        stream, cudart.cudaStreamNonBlocking, greatest[0]),
                "cudaStreamCreateWithPriority on GPU " + device);
    }

    /** Returns the operation that has been under way for longest, or {@code null}. Any thread. */
    @Nullable NcclWork getOldest() {
        NcclWork work = oldest;
        return work == null ? issuing : work;
    }

    /** Returns whether the oldest operation takes too long. Any thread. */
    boolean isOverdue(Duration timeout) {
        NcclWork work = getOldest();
        if (work == null) {
            return false;
        }
        long now = System.nanoTime();
        // its turn came when it was issued or when the one before it was done
        return Math.min(now - work.issued, now - lastCompletion) > timeout.toNanos();
    }

    /** Makes way for an operation: it follows what the thread's current stream has queued. */
    void begin(NcclWork work) {
        issuing = work;
        if (work.onGpu) {
            CUevent_st event = takeEvent();
            recordOnCurrentStream(event);
            Cuda.check(cudart.cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
            // the wait is for what was recorded: the event may be recorded anew at once
            free.push(event);
        }
    }

    /** Marks the end of an operation that is on the stream. */
    void add(NcclWork work) {
        CUevent_st event = takeEvent();
        Cuda.check(cudart.cudaEventRecord(event, stream), "cudaEventRecord");
        work.event = event;
        if (work.call.getCollective() != Collective.BARRIER) {
            work.keep(work.call.getInput(), work.call.getOutput());
        }
        pending.add(work);
        oldest = pending.peek();
        issuing = null;
    }

    /** Lets no operation come to its end any more: they are aborted. Any thread. */
    void stop() {
        stopped = true;
    }

    /** Forgets an operation that leaves nothing on the stream. Any thread. */
    void end() {
        issuing = null;
    }

    /** Takes the operations that are done off the list, on any thread: it works on the GPU then. */
    void sweep() {
        Cuda.use(device); // a thread that never said where it works takes memory of GPU 0
        while (!pending.isEmpty()) {
            NcclWork work = pending.peek();
            int result = cudart.cudaEventQuery(work.event);
            if (result == cudart.cudaErrorNotReady || stopped) {
                break;
            }
            Cuda.check(result, work.call.toString());
            work.call.finish();
            release(work);
            pending.remove();
            lastCompletion = System.nanoTime();
        }
        oldest = pending.peek();
    }

    /** Returns whether no operation is under way. */
    boolean isEmpty() {
        sweep();
        return pending.isEmpty();
    }

    /** Makes the thread's current stream wait for an operation; the calling thread goes on. */
    void awaitOnStream(NcclWork work) {
        if (work.event == null) {
            return;
        }
        if (!onCurrentStream((cuda, current) -> cuda.block(work.event, current))) {
            CUstream_st none = null;
            Cuda.check(cudart.cudaStreamWaitEvent(none, work.event, 0), "cudaStreamWaitEvent");
        }
        work.release();
    }

    /** Records an event behind everything that the current stream has queued. */
    private void recordOnCurrentStream(CUevent_st event) {
        int flag = torch.EventFlag.PYTORCH_DEFAULT.value;
        if (!onCurrentStream((cuda, current) -> cuda.record(event, current, (byte) device, flag))) {
            CUstream_st none = null;
            Cuda.check(cudart.cudaEventRecord(event, none), "cudaEventRecord");
        }
    }

    /** Does something with libtorch's current stream. Returns whether it knows of GPUs. */
    private boolean onCurrentStream(BiConsumer<DeviceGuardImplInterface, Stream> action) {
        LibTorch.load(); // a barrier may be the first call of all
        if (!torch.hasDeviceGuardImpl(DeviceType.CUDA)) {
            return false;
        }
        DeviceGuardImplInterface cuda = torch.getDeviceGuardImpl(DeviceType.CUDA);
        try (Device place = new Device(DeviceType.CUDA, (byte) device);
                Stream current = cuda.getStream(place)) {
            action.accept(cuda, current);
        }
        return true;
    }

    /** Returns whether the stream is past an operation, done or aborted. */
    boolean isPast(NcclWork work) {
        Cuda.use(device);
        return work.event == null || cudart.cudaEventQuery(work.event) != cudart.cudaErrorNotReady;
    }

    private CUevent_st takeEvent() {
        CUevent_st event = free.poll();
        if (event == null) {
            event = new CUevent_st();
            Cuda.check(
                    cudart.cudaEventCreateWithFlags(event, cudart.cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
        }
        return event;
    }

    private void release(NcclWork work) {
        work.release();
        if (work.event != null) {
            free.push(work.event);
            work.event = null;
        }
    }

    void close() {
        pending.forEach(this::release);
        pending.clear();
        end();
        oldest = null;
        free.forEach(cudart::cudaEventDestroy);
        free.clear();
        cudart.cudaStreamDestroy(stream);
    }
}
