package io.djltp.collective.nccl;

import org.bytedeco.cuda.global.cudart;

/** The GPU that a thread works on: streams, events and communicators belong to it. */
final class Gpu {

    private Gpu() {}

    static int current() {
        int[] device = new int[1];
        NcclErrors.checkCuda(cudart.cudaGetDevice(device), "cudaGetDevice");
        return device[0];
    }

    static void use(int device) {
        NcclErrors.checkCuda(cudart.cudaSetDevice(device), "cudaSetDevice to GPU " + device);
    }
}
