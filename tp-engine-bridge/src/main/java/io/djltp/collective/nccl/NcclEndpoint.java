package io.djltp.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerPointer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
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

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    /** How long an aborted kernel may take to let go of the tensors. */
    private static final Duration DRAIN_TIMEOUT = Duration.ofSeconds(5);

    private final ReentrantLock lock = new ReentrantLock();
    private final NcclGroup group;
    private final int rank;
    private final int device;
    private final boolean reachesHostMemory;
    private final List<ncclComm> comms = new ArrayList<>();
    private final OperationQueue queue;
    private final Pointer scratch = new Pointer();
    private final PointerPointer<ncclComm> part; // where NCCL puts the result of a split, later
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
        part = new PointerPointer<>(1L);
        part.put(0, (ncclComm) null);
        part.retainReference(); // not to be freed with a scope of the caller
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

    OperationQueue getQueue() {
        return queue;
    }

    boolean isClosed() {
        return closed;
    }

    /** Takes the lock for an abort; false if another thread does not let go of it. */
    boolean lock(long seconds) {
        try {
            return lock.tryLock(seconds, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return lock.tryLock();
        }
    }

    void unlock() {
        lock.unlock();
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
        checkFailure(work);
    }

    /**
     * Makes a call that goes on in the background, and waits for its end.
     *
     * @param work stands for the call
     * @param comm the communicator
     * @param call makes the call of NCCL and returns its result
     */
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
            fail(describe(work, result), null);
        }
        checkFailure(work);
    }

    /**
     * Waits until a call has got through: only then the operation is on the stream, and the
     * communicator takes another one.
     */
    private void awaitLaunch(NcclWork work, ncclComm comm) {
        Backoff backoff = new Backoff();
        int result = getState(comm);
        while (result == nccl.ncclInProgress) {
            checkInterrupt(work);
            checkFailure(work);
            backoff.pause();
            result = getState(comm);
        }
        if (result != nccl.ncclSuccess) {
            fail(describe(work, result), null);
        }
        checkFailure(work);
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

    /** Waits for an operation in the calling thread. */
    void awaitOnHost(NcclWork work) {
        Backoff backoff = new Backoff();
        while (!isDone(work)) {
            checkInterrupt(work);
            if (group.getFailure().isSet()) {
                group.awaitAborted();
                drain(work);
                checkFailure(work);
            }
            backoff.pause();
        }
    }

    private boolean isDone(NcclWork work) {
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

    /** Waits until an aborted operation has let go of its tensors. */
    private void drain(NcclWork work) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (System.nanoTime() - start < DRAIN_TIMEOUT.toNanos()) {
            lock.lock();
            try {
                if (closed || queue.isPast(work)) {
                    return;
                }
            } finally {
                lock.unlock();
            }
            backoff.pause();
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
            checkFailure(work);
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

    private void fail(String message, Throwable cause) {
        group.getFailure().set(new CollectiveException(message, cause));
    }

    private void checkInterrupt(NcclWork work) {
        if (Thread.currentThread().isInterrupted()) {
            // the flag stays: whoever set it may look for it
            fail(
                    "rank " + rank + " was interrupted in " + work.getCall(),
                    new InterruptedException());
        }
    }

    private void checkFailure(NcclWork work) {
        if (group.getFailure().isSet()) {
            group.awaitAborted();
            NcclCommunicator owner = work.getOwner();
            group.getFailure().check(owner.getRank(), owner.getSize());
        }
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int split(ncclComm comm, int color, int key) {
        part.put(0, (ncclComm) null);
        return nccl.ncclCommSplit(comm, color, key, part, null);
    }

    /** Returns the result of the split, or {@code null} if the group has failed just now. */
    ncclComm takePart() {
        lock.lock();
        try {
            ncclComm comm = part.get(ncclComm.class, 0);
            if (comm != null) {
                comms.add(comm);
                part.put(0, (ncclComm) null);
            }
            return comm;
        } finally {
            lock.unlock();
        }
    }

    /** Aborts all communicators, those of parts first. */
    void abort() {
        if (ended) {
            return;
        }
        ended = true;
        for (int i = comms.size() - 1; i >= 0; i--) {
            nccl.ncclCommAbort(comms.get(i));
        }
        comms.clear();
        ncclComm left = part.get(ncclComm.class, 0); // nobody will come to take it
        if (left != null) {
            nccl.ncclCommAbort(left);
            part.put(0, (ncclComm) null);
        }
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
            fail(describe(queue.getOldest(), result), null);
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
                fail("rank " + rank + " was closed while it waits" + where, null);
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
                part.releaseReference();
            }
        } finally {
            lock.unlock();
        }
    }
}
