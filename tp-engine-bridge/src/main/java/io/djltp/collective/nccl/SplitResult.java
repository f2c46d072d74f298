package io.djltp.collective.nccl;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.PointerPointer;

/**
 * Where NCCL puts the communicator of a part, when the call that asked for it has long returned: in
 * memory that outlives the call, therefore, and not in an argument that JavaCPP copies back.
 */
final class SplitResult {

    private final PointerPointer<ncclComm> place = new PointerPointer<>(1L);

    SplitResult() {
        clear();
        place.retainReference(); // not to be freed with a scope of the caller
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int begin(ncclComm comm, int color, int key) {
        clear();
        return nccl.ncclCommSplit(comm, color, key, place, null);
    }

    /** Returns the result, once; {@code null} if there is none. */
    ncclComm take() {
        ncclComm comm = place.get(ncclComm.class, 0);
        clear();
        return comm;
    }

    private void clear() {
        place.put(0, (ncclComm) null);
    }

    void close() {
        place.releaseReference();
    }
}
