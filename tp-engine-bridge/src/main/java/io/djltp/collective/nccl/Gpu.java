package io.djltp.collective.nccl;

import org.bytedeco.cuda.global.cudart;

/** The GPU that a thread works on: streams, events and communicators belong to it. */
final class Gpu {

    private static final int NONE = -1;

    private Gpu() {}

    /** Returns the calling thread's GPU, or a number that is none if CUDA does not say. */
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
        NcclErrors.checkCuda(cudart.cudaSetDevice(device), "cudaSetDevice to GPU " + device);
    }
}
