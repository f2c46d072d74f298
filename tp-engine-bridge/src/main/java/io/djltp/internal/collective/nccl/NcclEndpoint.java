package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.Pointer;

import java.time.Duration;
import java.util.List;
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

    /** How long the end of a communicator that has not failed may take. */
    private static final Duration CLOSING = Duration.ofSeconds(5);

    /** No result of NCCL's. */
    private static final int ALREADY_CLOSED = -1;

    private final NativeCallLock lock = new NativeCallLock();
    private final NcclGroup group;
    private final int rank;
    private final int device;
    private final boolean reachesHostMemory;
    private final NcclComms comms;
    private final OperationQueue queue;
    private final Pointer scratch = new Pointer();

    private volatile boolean closed;

    NcclEndpoint(NcclGroup group, int rank, int device, ncclComm comm) {
        this.group = group;
        this.rank = rank;
        this.device = device;
        comms = new NcclComms(comm);
        Cuda.use(device);
        reachesHostMemory = NcclLibrary.reachesHostMemory(device);
        queue = new OperationQueue(device);
        Cuda.check(cudart.cudaMalloc(scratch, Integer.BYTES), "cudaMalloc on GPU " + device);
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
        lock.run(
                () -> {
                    if (!comms.isEnded()) {
                        Cuda.use(device);
                        queue.add(work);
                    }
                });
        group.checkFailure(work);
    }

    /** Makes a call that goes on in the background, and waits for its end. */
    void call(NcclWork work, ncclComm comm, IntSupplier call) {
        begin(work, call);
        awaitLaunch(work, comm);
        queue.end();
    }

    private void begin(NcclWork work, IntSupplier call) {
        int result = lock.get(() -> beginLocked(work, call));
        if (result != nccl.ncclSuccess && result != nccl.ncclInProgress) {
            group.fail(describe(work, result));
        }
        group.checkFailure(work);
    }

    private int beginLocked(NcclWork work, IntSupplier call) {
        if (closed) {
            throw new CollectiveException("the rank was closed before");
        }
        if (comms.isEnded()) {
            return nccl.ncclSuccess;
        }
        Cuda.use(device);
        queue.sweep();
        queue.begin(work);
        return call.getAsInt();
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
        return lock.get(() -> comms.getState(comm));
    }

    /** Returns whether an operation is done. */
    boolean isDone(NcclWork work) {
        return lock.get(
                () -> {
                    if (!comms.isEnded()) {
                        queue.sweep();
                    }
                    return work.getCall().isFinished();
                });
    }

    /** Returns whether the stream is past an operation, done or aborted. */
    boolean isPast(NcclWork work) {
        return lock.get(() -> closed || queue.isPast(work));
    }

    /** Makes the current stream wait for an operation; the calling thread goes on. */
    void awaitOnStream(NcclWork work) {
        lock.run(
                () -> {
                    if (!comms.isEnded()) {
                        Cuda.use(device);
                        queue.awaitOnStream(work);
                    }
                });
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
        return lock.getUnlessBusy(
                () -> {
                    if (comms.isEnded()) {
                        return null;
                    }
                    queue.sweep();
                    int error = comms.findError();
                    return error == nccl.ncclSuccess ? null : describe(queue.getOldest(), error);
                },
                null);
    }

    /** Says what went wrong in an operation, or in none if that is {@code null}. */
    String describe(NcclWork work, int error) {
        String where = work == null ? "between operations" : "in " + work.getCall();
        return "rank " + rank + " failed " + where + ": " + Cuda.ncclText(error);
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int split(ncclComm comm, int color, int key) {
        return comms.beginSplit(comm, color, key);
    }

    /** Returns the result of the split, or {@code null} if the group has failed just now. */
    ncclComm takePart() {
        return lock.get(comms::takePart);
    }

    /** Returns the result of a split that nobody else will come to take, or {@code null}. */
    ncclComm takeUnclaimedPart() {
        return comms.takeUnclaimedPart();
    }

    /** Returns whether no operation is under way, as far as can be said without waiting. */
    boolean isIdle() {
        return lock.getUnlessBusy(
                () -> {
                    try {
                        return comms.isEnded() || queue.isEmpty();
                    } catch (CollectiveException e) {
                        return true; // an error of the GPU: nothing to wait for
                    }
                },
                false);
    }

    /**
     * Makes sure that nobody uses the communicators any more, unless a thread is stuck in a call
     * that only an abort may end.
     *
     * @param deadline until when such a thread is waited for, by {@link System#nanoTime()}
     * @return the communicators, those of parts first, for the caller to abort
     */
    List<ncclComm> end(long deadline) {
        return lock.getEvenIfStuck(rank, deadline, comms::end);
    }

    /** Frees a communicator when its operations are done; aborts the group if they do not end. */
    void close(ncclComm comm) {
        int result = lock.get(() -> finish(comm));
        if (result == ALREADY_CLOSED) {
            return;
        }
        if (result == nccl.ncclSuccess || result == nccl.ncclInProgress) {
            awaitFinished(comm);
        } else {
            group.fail(describe(queue.getOldest(), result));
        }
        lock.run(
                () -> {
                    if (!comms.isEnded()) {
                        Cuda.use(device);
                        comms.destroy(comm);
                    }
                });
    }

    private int finish(ncclComm comm) {
        if (!comms.contains(comm)) {
            return ALREADY_CLOSED;
        }
        Cuda.use(device);
        return nccl.ncclCommFinalize(comm);
    }

    private void awaitFinished(ncclComm comm) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (getState(comm) == nccl.ncclInProgress) {
            if (System.nanoTime() - start > CLOSING.toNanos()) {
                NcclWork work = queue.getOldest();
                String where = work == null ? "" : " in " + work.getCall();
                group.fail("rank " + rank + " was closed while it waits" + where);
            }
            backoff.pause();
        }
    }

    /** Frees everything. */
    void close() {
        lock.get(comms::getOpen).forEach(this::close);
        if (group.getFailure().isSet()) {
            group.awaitAborted();
        }
        lock.run(this::free);
        group.onClose();
    }

    private void free() {
        if (!closed) {
            Cuda.use(device);
            if (!comms.isEnded()) {
                queue.sweep();
            }
            closed = true;
            queue.close();
            cudart.cudaFree(scratch);
            comms.close();
        }
    }
}
