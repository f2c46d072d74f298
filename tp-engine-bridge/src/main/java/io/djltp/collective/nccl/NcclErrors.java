package io.djltp.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.javacpp.BytePointer;

/** The errors of CUDA and NCCL, in words. */
final class NcclErrors {

    private NcclErrors() {}

    /** Returns the text of a CUDA error. */
    static String cudaText(int error) {
        return text(cudart.cudaGetErrorName(error)) + ": " + text(cudart.cudaGetErrorString(error));
    }

    /**
     * Returns the text of an NCCL error and what NCCL last had to say about one.
     *
     * <p>That is kept once for a process, and without {@code NCCL_DEBUG=WARN} it is all there is.
     */
    static String ncclText(int error) {
        // the communicator is not looked at by any NCCL so far, and may be gone
        String detail = text(nccl.ncclGetLastError(null)).strip();
        String code = "NCCL error " + error + " (" + text(nccl.ncclGetErrorString(error)) + ")";
        return detail.isEmpty() ? code : code + ": " + detail;
    }

    /** Throws if a call has failed. */
    static void checkCuda(int error, String call) {
        if (error != cudart.cudaSuccess) {
            String text = cudaText(error);
            cudart.cudaGetLastError(); // libtorch would take it for its own
            throw new CollectiveException(call + " failed: " + text);
        }
    }

    /** Throws if a call has failed. One that goes on has not. */
    static void checkNccl(int error, String call) {
        if (error != nccl.ncclSuccess && error != nccl.ncclInProgress) {
            throw new CollectiveException(call + " failed: " + ncclText(error));
        }
    }

    private static String text(BytePointer pointer) {
        return pointer == null || pointer.isNull() ? "" : pointer.getString();
    }
}
