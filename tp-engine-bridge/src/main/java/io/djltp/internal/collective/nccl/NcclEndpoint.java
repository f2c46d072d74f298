package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.collective.CollectiveCall;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerPointer;
import org.jspecify.annotations.Nullable;
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
 * What a rank has on its GPU: NCCL's communicators of the group and of the parts that it was split
 * into, and the stream that they share, so that the order of the calls is the order of execution.
 *
 * <p>All native calls on them are made under one lock, and none takes long: the communicators are
 * non-blocking, and what waits asks again and again and lets go of the lock in between. So they can
 * be aborted at any time, by any thread.
 */
@SuppressWarnings("try") // a lock is used by being held
final class NcclEndpoint {

    private static final Logger logger = LoggerFactory.getLogger(NcclEndpoint.class);

    /** How long a thread that is stuck is waited for. */
    static final Duration PATIENCE = Duration.ofSeconds(2);

    /** How long the operations of a communicator that is closed may take to come to their end. */
    private static final Duration CLOSING = Duration.ofSeconds(5);

    final NcclGroup group;
    final int rank;
    final int device;
    final boolean reachesHostMemory;
    final OperationQueue queue;

    /** An element of the GPU's memory for barriers. */
    final Pointer scratch = new Pointer();

    private final ReentrantLock lock = new ReentrantLock();
    private final List<ncclComm> open = new ArrayList<>();
    // where NCCL puts the communicator of a part when the call that asked for it has long returned:
    // in memory that outlives the call, therefore, and not an argument that JavaCPP copies back
    private final PointerPointer<ncclComm> part = new PointerPointer<>(1L);
    private final int[] state = new int[1];
    private volatile boolean ended; // the communicators have been given to be aborted, or freed
    private volatile boolean closed;

    NcclEndpoint(NcclGroup group, int rank, int device, ncclComm comm) {
        this.group = group;
        this.rank = rank;
        this.device = device;
        open.add(comm);
        clearPart();
        part.retainReference(); // not to be freed with a scope of the caller
        Cuda.use(device);
        reachesHostMemory = NcclLibrary.reachesHostMemory(device);
        queue = new OperationQueue(device);
        Cuda.check(cudart.cudaMalloc(scratch, Integer.BYTES), "cudaMalloc on GPU " + device);
    }

    /** The lock, while a thread makes native calls. */
    private interface Held extends AutoCloseable {
        @Override
        void close();
    }

    private Held hold() {
        lock.lock();
        return lock::unlock;
    }

    private void clearPart() {
        part.put(0, (ncclComm) null);
    }

    boolean isClosed() {
        return closed;
    }

    /** Throws if the group has failed, once nothing of it runs any more. */
    void checkFailure() {
        group.checkFailure(rank);
    }

    /** Ends the group if the thread was interrupted; the flag stays. */
    void checkInterrupt(CollectiveCall call) {
        if (Thread.currentThread().isInterrupted()) {
            group.getFailure().set(call.interruptedOn(rank, new InterruptedException()));
        }
    }

    /**
     * Queues an operation on the communication stream.
     *
     * @param work the operation
     * @param comm the communicator
     * @param calls makes the calls of NCCL and returns its result
     */
    void issue(NcclWork work, ncclComm comm, ToIntFunction<CUstream_st> calls) {
        begin(work, () -> calls.applyAsInt(queue.stream));
        awaitLaunch(work.call, comm);
        try (Held held = hold()) {
            if (!ended) {
                Cuda.use(device);
                queue.add(work);
            }
        }
        checkFailure();
    }

    /** Makes a call that goes on in the background, and waits for its end. */
    void call(NcclWork work, ncclComm comm, IntSupplier call) {
        begin(work, call);
        awaitLaunch(work.call, comm);
        queue.end();
    }

    private void begin(NcclWork work, IntSupplier call) {
        int result = nccl.ncclSuccess;
        try (Held held = hold()) {
            if (closed) {
                throw new CollectiveException("the rank was closed before");
            }
            if (!ended) {
                Cuda.use(device);
                queue.sweep();
                queue.begin(work);
                result = call.getAsInt();
            }
        }
        if (!Cuda.isGood(result)) {
            group.fail(describe(work.call, result));
        }
        checkFailure();
    }

    /**
     * Waits until a call has got through: only then the operation is on the stream, and the
     * communicator takes another one.
     */
    private void awaitLaunch(CollectiveCall call, ncclComm comm) {
        Backoff backoff = new Backoff();
        int result = getState(comm);
        while (result == nccl.ncclInProgress) {
            checkInterrupt(call);
            checkFailure();
            backoff.pause();
            result = getState(comm);
        }
        if (result != nccl.ncclSuccess) {
            group.fail(describe(call, result));
        }
        checkFailure();
    }

    /** Returns NCCL's error or the state that a communicator is in. */
    private int getState(ncclComm comm) {
        try (Held held = hold()) {
            if (ended) {
                return nccl.ncclSuccess;
            }
            int error = nccl.ncclCommGetAsyncError(comm, state);
            return error == nccl.ncclSuccess ? state[0] : error;
        }
    }

    /** Returns whether an operation is done. */
    boolean isDone(NcclWork work) {
        try (Held held = hold()) {
            if (!ended) {
                queue.sweep();
            }
            return work.call.isFinished();
        }
    }

    /** Returns whether the stream is past an operation, done or aborted. */
    boolean isPast(NcclWork work) {
        try (Held held = hold()) {
            return closed || queue.isPast(work);
        }
    }

    /** Makes the current stream wait for an operation; the calling thread goes on. */
    void awaitOnStream(NcclWork work) {
        try (Held held = hold()) {
            if (!ended) {
                Cuda.use(device);
                queue.awaitOnStream(work);
            }
        }
        if (!work.call.isFinished()) {
            checkFailure();
        }
    }

    /**
     * Looks for an error that NCCL has met on its own. Does not wait for a thread that is in a
     * call.
     *
     * @return the error, or {@code null}
     */
    @Nullable String findError() {
        if (!lock.tryLock()) {
            return null;
        }
        try (Held held = lock::unlock) {
            if (ended) {
                return null;
            }
            queue.sweep();
            for (ncclComm comm : open) {
                int result = getState(comm);
                if (!Cuda.isGood(result)) {
                    NcclWork oldest = queue.getOldest();
                    return describe(oldest == null ? null : oldest.call, result);
                }
            }
            return null;
        }
    }

    /** Says what went wrong in a call, or in none if that is {@code null}. */
    private String describe(@Nullable CollectiveCall call, int error) {
        String where = call == null ? "between operations" : "in " + call;
        return "rank " + rank + " failed " + where + ": " + Cuda.ncclText(error);
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int split(ncclComm comm, int color, int key) {
        clearPart();
        return nccl.ncclCommSplit(comm, color, key, part, null);
    }

    /** Returns the result of the split, or {@code null} if the group has failed just now. */
    @Nullable ncclComm takePart() {
        try (Held held = hold()) {
            ncclComm comm = ended ? null : takeUnclaimedPart();
            if (comm != null) {
                open.add(comm);
            }
            return comm;
        }
    }

    /**
     * Returns the result of a split that nobody else will come to take, or {@code null}. Any
     * thread, after the end.
     */
    @Nullable ncclComm takeUnclaimedPart() {
        ncclComm comm = part.get(ncclComm.class, 0);
        clearPart();
        return comm;
    }

    /** Returns whether no operation is under way, as far as can be said without waiting. */
    boolean isIdle() {
        if (ended || !lock.tryLock()) {
            return ended;
        }
        try (Held held = lock::unlock) {
            return queue.isEmpty();
        } catch (CollectiveException e) {
            return true; // an error of the GPU: nothing to wait for
        }
    }

    /**
     * Makes sure that nobody uses the communicators any more, unless a thread is stuck in a call
     * that only an abort may end.
     *
     * @param deadline until when such a thread is waited for, by {@link System#nanoTime()}
     * @return the communicators, those of parts first, for the caller to abort
     */
    List<ncclComm> end(long deadline) {
        Backoff backoff = new Backoff();
        boolean locked = lock.tryLock();
        while (!locked && System.nanoTime() <= deadline) {
            backoff.pause();
            locked = lock.tryLock();
        }
        if (!locked) {
            logger.warn("Rank {} is stuck in a native call: aborting under it", rank);
        }
        ended = true;
        queue.stop();
        List<ncclComm> all = partsFirst();
        open.clear();
        if (locked) {
            lock.unlock();
        }
        return all;
    }

    private List<ncclComm> partsFirst() {
        List<ncclComm> all = new ArrayList<>(open);
        Collections.reverse(all);
        return all;
    }

    /** Frees a communicator when its operations are done; aborts the group if they do not end. */
    void close(ncclComm comm) {
        int result;
        try (Held held = hold()) {
            if (ended || !open.contains(comm)) {
                return;
            }
            Cuda.use(device);
            result = nccl.ncclCommFinalize(comm);
        }
        boolean isFinished = false;
        if (Cuda.isGood(result)) {
            isFinished = awaitFinished(comm);
        } else {
            NcclWork oldest = queue.getOldest();
            group.fail(describe(oldest == null ? null : oldest.call, result));
        }
        try (Held held = hold()) {
            if (!ended) {
                Cuda.use(device);
                if (isFinished) {
                    nccl.ncclCommDestroy(comm);
                } else {
                    nccl.ncclCommAbort(comm);
                }
                open.remove(comm);
            }
        }
    }

    /**
     * Waits until a communicator has come to its end. NCCL waits there for the processes of the
     * machine, one of which may still write a checkpoint.
     *
     * @return whether it has; otherwise it waits for others, and this rank has nothing to do there
     */
    private boolean awaitFinished(ncclComm comm) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (getState(comm) == nccl.ncclInProgress) {
            NcclWork work = queue.getOldest();
            long waited = System.nanoTime() - start;
            if (work != null && waited > Math.min(CLOSING.toNanos(), group.timeout.toNanos())) {
                group.fail("rank " + rank + " was closed while it waits in " + work.call);
            } else if (work == null && waited > group.timeout.toNanos()) {
                logger.warn("Rank {} closes NCCL without the processes beside it", rank);
                return false;
            }
            backoff.pause();
        }
        return true;
    }

    /** Frees everything. */
    void close() {
        List<ncclComm> all;
        try (Held held = hold()) {
            all = partsFirst();
        }
        all.forEach(this::close);
        if (group.getFailure().isSet()) {
            group.awaitAborted();
        }
        try (Held held = hold()) {
            if (!closed) {
                Cuda.use(device);
                if (!ended) {
                    queue.sweep();
                }
                closed = true;
                queue.close();
                cudart.cudaFree(scratch);
                ended = true;
                part.releaseReference();
            }
        }
        group.onClose();
    }
}
