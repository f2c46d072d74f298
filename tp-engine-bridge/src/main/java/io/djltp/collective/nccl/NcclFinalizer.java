package io.djltp.collective.nccl;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;

import java.time.Duration;

/** The end of a communicator that has not failed: NCCL is told, and then waited for. */
final class NcclFinalizer {

    private static final Duration TIMEOUT = Duration.ofSeconds(5);

    /** No result of NCCL's. */
    private static final int ALREADY_CLOSED = -1;

    private final NcclEndpoint endpoint;
    private final NativeCallLock lock;
    private final NcclComms comms;

    NcclFinalizer(NcclEndpoint endpoint, NativeCallLock lock, NcclComms comms) {
        this.endpoint = endpoint;
        this.lock = lock;
        this.comms = comms;
    }

    /** Frees a communicator when its operations are done; aborts the group if they do not end. */
    void close(ncclComm comm) {
        int result =
                lock.get(
                        () -> {
                            if (!comms.contains(comm)) {
                                return ALREADY_CLOSED;
                            }
                            Gpu.use(endpoint.getDevice());
                            return nccl.ncclCommFinalize(comm);
                        });
        if (result == ALREADY_CLOSED) {
            return;
        }
        if (result == nccl.ncclSuccess || result == nccl.ncclInProgress) {
            awaitFinalized(comm);
        } else {
            endpoint.getGroup().fail(endpoint.describe(endpoint.getQueue().getOldest(), result));
        }
        lock.run(
                () -> {
                    if (!comms.isEnded()) {
                        Gpu.use(endpoint.getDevice());
                        comms.destroy(comm);
                    }
                });
    }

    private void awaitFinalized(ncclComm comm) {
        Backoff backoff = new Backoff();
        long start = System.nanoTime();
        while (lock.get(() -> comms.getState(comm)) == nccl.ncclInProgress) {
            if (System.nanoTime() - start > TIMEOUT.toNanos()) {
                NcclWork work = endpoint.getQueue().getOldest();
                String where = work == null ? "" : " in " + work.getCall();
                endpoint.getGroup()
                        .fail("rank " + endpoint.getRank() + " was closed while it waits" + where);
            }
            backoff.pause();
        }
    }
}
