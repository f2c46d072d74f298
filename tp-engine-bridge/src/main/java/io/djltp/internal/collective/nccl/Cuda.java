package io.djltp.internal.collective.nccl;

import io.djltp.collective.CollectiveException;

import org.bytedeco.cuda.global.cudart;
import org.bytedeco.cuda.global.nccl;
import org.bytedeco.javacpp.BytePointer;

/**
 * The GPU that a thread works on, to which streams, events and communicators belong, and the errors
 * of CUDA and NCCL in words.
 */
final class Cuda {

    private static final int NONE = -1;

    private Cuda() {}

    /** Returns the calling thread's GPU, or {@code NONE} if CUDA returns an error. */
    static int currentOrNone() {
        int[] device = new int[1];
        return cudart.cudaGetDevice(device) == cudart.cudaSuccess ? device[0] : NONE;
    }

    /**
     * Makes a thread that may belong to anyone work on the GPU again that it worked on before. If
     * nothing in the process has used that one yet, the thread stays where it is: since CUDA 12 it
     * would take a context, hundreds of MB of a GPU that others may work on, to say that the thread
     * works there, and it is GPU 0 for a thread that has never said anything.
     *
     * @param device what {@link #currentOrNone()} has returned
     */
    static void restore(int device) {
        if (device != NONE && device != currentOrNone() && hasContext(device)) {
            cudart.cudaSetDevice(device);
        }
    }

    private static boolean hasContext(int device) {
        int[] handle = new int[1];
        int[] flags = new int[1];
        int[] active = new int[1];
        return cudart.cuDeviceGet(handle, device) == cudart.CUDA_SUCCESS
                && cudart.cuDevicePrimaryCtxGetState(handle[0], flags, active)
                        == cudart.CUDA_SUCCESS
                && active[0] != 0;
    }

    static void use(int device) {
        check(cudart.cudaSetDevice(device), "cudaSetDevice to GPU " + device);
    }

    /** Returns the text of a CUDA error. */
    static String describe(int error) {
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
    static void check(int error, String call) {
        if (error != cudart.cudaSuccess) {
            String text = describe(error);
            cudart.cudaGetLastError(); // libtorch would take it for its own
            throw new CollectiveException(call + " failed: " + text);
        }
    }

    /** Throws if a call has failed. One that goes on has not. */
    static void checkNccl(int error, String call) {
        if (!isGood(error)) {
            throw new CollectiveException(call + " failed: " + ncclText(error));
        }
    }

    /** Returns whether a call of NCCL has not failed; it may go on. */
    static boolean isGood(int result) {
        return result == nccl.ncclSuccess || result == nccl.ncclInProgress;
    }

    private static String text(BytePointer pointer) {
        return pointer == null || pointer.isNull() ? "" : pointer.getString();
    }
}
