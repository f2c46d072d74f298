package io.djltp.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntSupplier;
import java.util.function.ToIntFunction;

/**
 * What a rank has on its GPU: the communicators of the group and of the parts that it was split
 * into, and the stream that they share, so that the order of the calls is the order of execution.
 *
 * <p>All native calls on them are made under one lock, and none takes long: the communicators are
 * non-blocking, and what waits asks again and again and lets go of the lock in between. So they can
 * be aborted at any time, by any thread.
 */
final class NcclEndpoint {

    private static final Logger logger = LoggerFactory.getLogger(NcclEndpoint.class);

    private static final Duration LOCK_TIMEOUT = Duration.ofSeconds(2);
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    private final ReentrantLock lock = new ReentrantLock();
    private final NcclGroup group;
    private final int rank;
    private final int device;
    private final boolean reachesHostMemory;
    private final List<ncclComm> comms = new ArrayList<>();
    private final OperationQueue queue;
    private final Pointer scratch = new Pointer();
    private final SplitResult part = new SplitResult();
    private final int[] state = new int[1];

    private boolean ended; // the communicators are gone
    private volatile boolean closed;

    NcclEndpoint(NcclGroup group, int rank, int device, ncclComm comm) {
        this.group = group;
        this.rank = rank;
        this.device = device;
        comms.add(comm);
        Gpu.use(device);
        reachesHostMemory = NcclLibrary.reachesHostMemory(device);
        queue = new OperationQueue(device);
        NcclErrors.checkCuda(
                cudart.cudaMalloc(scratch, Integer.BYTES), "cudaMalloc on GPU " + device);
    }

    int getRank() {
        return rank;
    }

    int getDevice() {
        return device;
    }

    boolean reachesHostMemory() {
        return reachesHostMemory;
    }

    /** Returns an element of the GPU's memory for barriers. */
    Pointer getScratch() {
        return scratch;
    }

    NcclGroup getGroup() {
        return group;
    }

    OperationQueue getQueue() {
        return queue;
    }

    boolean isClosed() {
        return closed;
    }

    /**
     * Queues an operation on the communication stream.
     *
     * @param work the operation
     * @param comm the communicator
     * @param calls makes the calls of NCCL and returns its result
     */
    void issue(NcclWork work, ncclComm comm, ToIntFunction<CUstream_st> calls) {
        begin(work, () -> calls.applyAsInt(queue.getStream()));
        awaitLaunch(work, comm);
        lock.lock();
        try {
            if (!ended) {
                Gpu.use(device);
                queue.add(work);
            }
        } finally {
            lock.unlock();
        }
        group.checkFailure(work);
    }

    /** Makes a call that goes on in the background, and waits for its end. */
    void call(NcclWork work, ncclComm comm, IntSupplier call) {
        begin(work, call);
        awaitLaunch(work, comm);
        queue.end();
    }

    private void begin(NcclWork work, IntSupplier call) {
        int result = nccl.ncclSuccess;
        lock.lock();
        try {
            if (closed) {
                throw new CollectiveException("the rank was closed before");
            }
            if (!ended) {
                Gpu.use(device);
                queue.sweep();
                queue.begin(work);
                result = call.getAsInt();
            }
        } finally {
            lock.unlock();
        }
        if (result != nccl.ncclSuccess && result != nccl.ncclInProgress) {
            group.fail(describe(work, result));
        }
        group.checkFailure(work);
    }

    /**
     * Waits until a call has got through: only then the operation is on the stream, and the
     * communicator takes another one.
     */
    private void awaitLaunch(NcclWork work, ncclComm comm) {
        Backoff backoff = new Backoff();
        int result = getState(comm);
        while (result == nccl.ncclInProgress) {
            group.checkInterrupt(work);
            group.checkFailure(work);
            backoff.pause();
            result = getState(comm);
        }
        if (result != nccl.ncclSuccess) {
            group.fail(describe(work, result));
        }
        group.checkFailure(work);
    }

    private int getState(ncclComm comm) {
        lock.lock();
        try {
            if (ended) {
                return nccl.ncclSuccess;
            }
            int error = nccl.ncclCommGetAsyncError(comm, state);
            return error == nccl.ncclSuccess ? state[0] : error;
        } finally {
            lock.unlock();
        }
    }

    /** Returns whether an operation is done. */
    boolean isDone(NcclWork work) {
        lock.lock();
        try {
            if (!ended) {
                queue.sweep();
            }
            return work.getCall().isFinished();
        } finally {
            lock.unlock();
        }
    }

    /** Returns whether the stream is past an operation, done or aborted. */
    boolean isPast(NcclWork work) {
        lock.lock();
        try {
            return closed || queue.isPast(work);
        } finally {
            lock.unlock();
        }
    }

    /** Makes the current stream wait for an operation; the calling thread goes on. */
    void awaitOnStream(NcclWork work) {
        lock.lock();
        try {
            if (!ended) {
                Gpu.use(device);
                queue.awaitOnStream(work);
            }
        } finally {
            lock.unlock();
        }
        if (!work.getCall().isFinished()) {
            group.checkFailure(work);
        }
    }

    /**
     * Looks for an error that NCCL has met on its own. Does not wait for a thread that is in a
     * call.
     *
     * @return the error, or {@code null}
     */
    String findError() {
        if (!lock.tryLock()) {
            return null;
        }
        try {
            if (ended) {
                return null;
            }
            queue.sweep();
            for (ncclComm comm : comms) {
                int result = getState(comm);
                if (result != nccl.ncclSuccess && result != nccl.ncclInProgress) {
                    return describe(queue.getOldest(), result);
                }
            }
            return null;
        } finally {
            lock.unlock();
        }
    }

    private String describe(NcclWork work, int error) {
        String where = work == null ? "between operations" : "in " + work.getCall();
        return "rank " + rank + " failed " + where + ": " + NcclErrors.ncclText(error);
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int split(ncclComm comm, int color, int key) {
        return part.begin(comm, color, key);
    }

    /** Returns the result of the split, or {@code null} if the group has failed just now. */
    ncclComm takePart() {
        lock.lock();
        try {
            ncclComm comm = ended ? null : part.take();
            if (comm != null) {
                comms.add(comm);
            }
            return comm;
        } finally {
            lock.unlock();
        }
    }

    /** Returns whether no operation is under way, as far as can be said without waiting. */
    boolean isIdle() {
        if (!lock.tryLock()) {
            return false;
        }
        try {
            return ended || queue.isEmpty();
        } catch (CollectiveException e) {
            return true; // an error of the GPU: nothing to wait for
        } finally {
            lock.unlock();
        }
    }

    /**
     * Makes sure that nobody uses the communicators any more.
     *
     * @return the communicators, those of parts first, for the caller to abort
     */
    List<ncclComm> end() {
        boolean locked = lock();
        try {
            ended = true;
            List<ncclComm> all = new ArrayList<>(comms);
            Collections.reverse(all);
            comms.clear();
            return all;
        } finally {
            if (locked) {
                lock.unlock();
            }
        }
    }

    /** Returns the result of a split that nobody else will come to take, or {@code null}. */
    ncclComm takeLeftPart() {
        return part.take();
    }

    /** Takes the lock unless a thread is stuck with it, in a call that only an abort may end. */
    private boolean lock() {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (!lock.tryLock()) {
            if (System.nanoTime() - start > LOCK_TIMEOUT.toNanos()) {
                logger.warn("Rank {} is stuck in a native call: aborting under it", rank);
                return false;
            }
            backoff.pause();
        }
        return true;
    }

    /** Frees a communicator when its operations are done; aborts the group if they do not end. */
    void close(ncclComm comm) {
        int result;
        lock.lock();
        try {
            if (ended || !comms.contains(comm)) {
                return;
            }
            Gpu.use(device);
            result = nccl.ncclCommFinalize(comm);
        } finally {
            lock.unlock();
        }
        if (result == nccl.ncclSuccess || result == nccl.ncclInProgress) {
            awaitFinalized(comm);
        } else {
            group.fail(describe(queue.getOldest(), result));
        }
        lock.lock();
        try {
            if (!ended) {
                Gpu.use(device);
                nccl.ncclCommDestroy(comm);
                comms.remove(comm);
            }
        } finally {
            lock.unlock();
        }
    }

    private void awaitFinalized(ncclComm comm) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (getState(comm) == nccl.ncclInProgress) {
            if (System.nanoTime() - start > CLOSE_TIMEOUT.toNanos()) {
                NcclWork work = queue.getOldest();
                String where = work == null ? "" : " in " + work.getCall();
                group.fail("rank " + rank + " was closed while it waits" + where);
            }
            backoff.pause();
        }
    }

    /** Frees everything. */
    void close() {
        List<ncclComm> last;
        lock.lock();
        try {
            last = new ArrayList<>(comms);
        } finally {
            lock.unlock();
        }
        for (int i = last.size() - 1; i >= 0; i--) {
            close(last.get(i)); // those of parts first
        }
        if (group.getFailure().isSet()) {
            group.awaitAborted();
        }
        free();
        group.onClose();
    }

    private void free() {
        lock.lock();
        try {
            if (!closed) {
                Gpu.use(device);
                if (!ended) {
                    queue.sweep();
                }
                closed = true;
                ended = true;
                queue.close();
                cudart.cudaFree(scratch);
                part.close();
            }
        } finally {
            lock.unlock();
        }
    }
}
