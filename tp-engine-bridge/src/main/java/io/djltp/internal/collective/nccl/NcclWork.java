package io.djltp.internal.collective.nccl;

import io.djltp.collective.Work;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Stream;

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

    // references to the memory that the operation works on: libtorch would give it to others as
    // soon as the caller closes the arrays, since it knows of no stream but the current one
    private List<Tensor> tensors = List.of();

    NcclWork(NcclEndpoint endpoint, CollectiveCall call, boolean onGpu) {
        this.endpoint = endpoint;
        this.call = call;
        this.onGpu = onGpu;
    }

    /** Keeps the tensors from here on, where the operation is on the stream. */
    void keep(TensorView... views) {
        tensors =
                Stream.of(views)
                        .distinct()
                        .map(view -> new Tensor(view.tensor()).<Tensor>retainReference())
                        .toList();
    }

    /** Lets go of the tensors: what uses their memory next comes behind the operation. */
    void release() {
        tensors.forEach(Tensor::close);
        tensors = List.of();
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
