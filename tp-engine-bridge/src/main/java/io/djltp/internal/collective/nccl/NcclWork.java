package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveCall;
import io.djltp.collective.Work;

import org.bytedeco.cuda.cudart.CUevent_st;

import java.util.concurrent.atomic.LongAdder;

/** An operation on the communication stream of a rank. */
final class NcclWork implements Work {

    /** How long an abort and its kernel may take to let go of the tensors. */
    private static final long DRAIN_NANOS = 10_000_000_000L;

    private static final LongAdder HOST_WAITS = new LongAdder();

    private final NcclEndpoint endpoint;
    private final NcclCommunicator owner;
    private final CollectiveCall call;
    private final boolean onGpu;
    private final long issued = System.nanoTime();

    /** Reached by the stream when the operation is done; {@code null} before and after. */
    private CUevent_st event;

    NcclWork(NcclEndpoint endpoint, NcclCommunicator owner, CollectiveCall call, boolean onGpu) {
        this.endpoint = endpoint;
        this.owner = owner;
        this.call = call;
        this.onGpu = onGpu;
    }

    /** {@inheritDoc} */
    @Override
    public void await() {
        if (onGpu) {
            endpoint.awaitOnStream(this);
        } else {
            awaitOnHost();
        }
    }

    /** Returns how often a thread of the process has waited for an operation. */
    static long getHostWaits() {
        return HOST_WAITS.sum();
    }

    private void awaitOnHost() {
        HOST_WAITS.increment();
        Backoff backoff = new Backoff();
        while (!endpoint.isDone(this)) {
            endpoint.getGroup().checkInterrupt(this);
            if (owner.hasFailed()) {
                drain();
                endpoint.getGroup().checkFailure(this);
            }
            backoff.pause();
        }
    }

    /** Waits until an aborted operation has let go of its tensors. */
    private void drain() {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (!endpoint.isPast(this) && System.nanoTime() - start < DRAIN_NANOS) {
            backoff.pause();
        }
    }

    /** Returns the rank in the group of all ranks. */
    int getRank() {
        return endpoint.getRank();
    }

    NcclCommunicator getOwner() {
        return owner;
    }

    CollectiveCall getCall() {
        return call;
    }

    boolean isOnGpu() {
        return onGpu;
    }

    long getIssued() {
        return issued;
    }

    CUevent_st getEvent() {
        return event;
    }

    void setEvent(CUevent_st event) {
        this.event = event;
    }
}
