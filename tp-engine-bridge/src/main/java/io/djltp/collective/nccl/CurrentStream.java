package io.djltp.collective.nccl;

import io.djltp.torch.LibTorch;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.pytorch.Device;
import org.bytedeco.pytorch.DeviceGuardImplInterface;
import org.bytedeco.pytorch.Stream;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.DeviceType;

/**
 * The stream on which libtorch runs the calling thread's kernels on a GPU.
 *
 * <p>DJL has no streams, so it is the default stream of the GPU unless someone has changed it
 * through libtorch. The preset on the class path has no CUDA part, but libtorch's virtual interface
 * to it, which every libtorch has, is enough: it records our events on the current stream, and
 * makes the current stream wait for them, whichever stream that is.
 */
final class CurrentStream {

    private CurrentStream() {}

    /** Records an event behind everything that the current stream has queued. */
    static void record(CUevent_st event, int device) {
        LibTorch.load(); // a barrier may be the first call of all
        if (!torch.hasDeviceGuardImpl(DeviceType.CUDA)) {
            NcclErrors.checkCuda(cudart.cudaEventRecord(event, nullStream()), "cudaEventRecord");
            return;
        }
        DeviceGuardImplInterface cuda = torch.getDeviceGuardImpl(DeviceType.CUDA);
        try (Device place = new Device(DeviceType.CUDA, (byte) device);
                Stream stream = cuda.getStream(place)) {
            cuda.record(event, stream, (byte) device, torch.EventFlag.PYTORCH_DEFAULT.value);
        }
    }

    /** Makes the current stream wait for an event; the calling thread goes on. */
    static void await(CUevent_st event, int device) {
        LibTorch.load(); // a barrier may be the first call of all
        if (!torch.hasDeviceGuardImpl(DeviceType.CUDA)) {
            NcclErrors.checkCuda(
                    cudart.cudaStreamWaitEvent(nullStream(), event, 0), "cudaStreamWaitEvent");
            return;
        }
        DeviceGuardImplInterface cuda = torch.getDeviceGuardImpl(DeviceType.CUDA);
        try (Device place = new Device(DeviceType.CUDA, (byte) device);
                Stream stream = cuda.getStream(place)) {
            cuda.block(event, stream);
        }
    }

    private static CUstream_st nullStream() {
        return null;
    }
}
