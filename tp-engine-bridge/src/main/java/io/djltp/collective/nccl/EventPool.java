package io.djltp.collective.nccl;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.global.cudart;

import java.util.ArrayDeque;
import java.util.Deque;

/** The events of a rank's GPU: as many as operations were ever under way at once, used again. */
final class EventPool {

    private final Deque<CUevent_st> free = new ArrayDeque<>();

    CUevent_st take() {
        CUevent_st event = free.poll();
        if (event == null) {
            event = new CUevent_st();
            NcclErrors.checkCuda(
                    cudart.cudaEventCreateWithFlags(event, cudart.cudaEventDisableTiming),
                    "cudaEventCreateWithFlags");
        }
        return event;
    }

    void giveBack(CUevent_st event) {
        free.push(event);
    }

    void close() {
        for (CUevent_st event : free) {
            cudart.cudaEventDestroy(event);
        }
        free.clear();
    }
}
