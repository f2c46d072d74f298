package io.djltp.internal.collective.nccl;

import io.djltp.collective.Work;
import io.djltp.internal.collective.CollectiveCall;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.jspecify.annotations.Nullable;

import java.util.concurrent.atomic.LongAdder;

/** An operation on the communication stream of a rank. */
final class NcclWork implements Work {

    /** How long an abort and its kernel may take to let go of the tensors. */
    private static final long DRAIN_NANOS = 10_000_000_000L;

    private static final LongAdder HOST_WAITS = new LongAdder();

    final CollectiveCall call;
    final boolean onGpu;
    final long issued = System.nanoTime();

    /** Reached by the stream when the operation is done; {@code null} before and after. */
    @Nullable CUevent_st event;

    private final NcclEndpoint endpoint;

    NcclWork(NcclEndpoint endpoint, CollectiveCall call, boolean onGpu) {
        this.endpoint = endpoint;
        this.call = call;
        this.onGpu = onGpu;
    }

    /** Returns how often a thread of the process has waited for an operation. */
    static long getHostWaits() {
        return HOST_WAITS.sum();
    }

    /** {@inheritDoc} */
    @Override
    public void await() {
        if (onGpu) {
            endpoint.awaitOnStream(this);
            return;
        }
        HOST_WAITS.increment();
        Backoff backoff = new Backoff();
        while (!endpoint.isDone(this)) {
            endpoint.checkInterrupt(call);
            if (endpoint.group.getFailure().isSet()) {
                drain();
                endpoint.checkFailure();
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
}
