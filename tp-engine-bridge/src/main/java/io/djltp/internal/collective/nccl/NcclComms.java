package io.djltp.internal.collective.nccl;

import org.bytedeco.cuda.global.nccl;
import org.bytedeco.cuda.nccl.ncclComm;
import org.bytedeco.javacpp.PointerPointer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * NCCL's communicators of a rank: that of the group, and those of the parts that it was split into.
 * Used under the lock of the rank's {@link NcclEndpoint}, except where said.
 */
final class NcclComms {

    private final List<ncclComm> open = new ArrayList<>();
    // where NCCL puts the communicator of a part when the call that asked for it has long returned:
    // in memory that outlives the call, therefore, and not an argument that JavaCPP copies back
    private final PointerPointer<ncclComm> part = new PointerPointer<>(1L);
    private final int[] state = new int[1];
    private boolean ended; // they have been given to be aborted, or freed

    NcclComms(ncclComm group) {
        open.add(group);
        clearPart();
        part.retainReference(); // not to be freed with a scope of the caller
    }

    private void clearPart() {
        part.put(0, (ncclComm) null);
    }

    boolean isEnded() {
        return ended;
    }

    boolean contains(ncclComm comm) {
        return !ended && open.contains(comm);
    }

    /** Returns NCCL's error or the state that a communicator is in. */
    int getState(ncclComm comm) {
        if (ended) {
            return nccl.ncclSuccess;
        }
        int error = nccl.ncclCommGetAsyncError(comm, state);
        return error == nccl.ncclSuccess ? state[0] : error;
    }

    /** Returns the first error of a communicator, or {@code ncclSuccess}. */
    int findError() {
        for (ncclComm comm : open) {
            int result = getState(comm);
            if (result != nccl.ncclSuccess && result != nccl.ncclInProgress) {
                return result;
            }
        }
        return nccl.ncclSuccess;
    }

    /** Begins a split; the result is there when the communicator is ready again. */
    int beginSplit(ncclComm comm, int color, int key) {
        clearPart();
        return nccl.ncclCommSplit(comm, color, key, part, null);
    }

    /** Returns the result of the split, or {@code null} if the communicators have ended. */
    ncclComm takePart() {
        ncclComm comm = ended ? null : takeUnclaimedPart();
        if (comm != null) {
            open.add(comm);
        }
        return comm;
    }

    /**
     * Returns the result of a split that nobody else will come to take, or {@code null}. Any
     * thread, after the end.
     */
    ncclComm takeUnclaimedPart() {
        ncclComm comm = part.get(ncclComm.class, 0);
        clearPart();
        return comm;
    }

    /** Returns those that are open, those of parts first. */
    List<ncclComm> getOpen() {
        List<ncclComm> all = new ArrayList<>(open);
        Collections.reverse(all);
        return all;
    }

    /** Makes sure that they are not used any more, and returns those that were open. */
    List<ncclComm> end() {
        ended = true;
        List<ncclComm> all = getOpen();
        open.clear();
        return all;
    }

    /** Frees one whose operations are done. */
    void destroy(ncclComm comm) {
        nccl.ncclCommDestroy(comm);
        open.remove(comm);
    }

    /** Frees the memory for results of splits. */
    void close() {
        ended = true;
        part.releaseReference();
    }
}
