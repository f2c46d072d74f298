package io.djltp.collective.nccl;

import ai.djl.Device;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Which GPU a rank works on. */
final class GpuAssignment {

    private GpuAssignment() {}

    /**
     * Finds a GPU for each rank of this process.
     *
     * @param firstRank the first rank of this process
     * @param devices the devices that the ranks were given
     * @param count the number of GPUs
     * @return the numbers of the GPUs
     */
    static int[] assign(int firstRank, List<Device> devices, int count) {
        int[] gpus = new int[devices.size()];
        Set<Integer> taken = new HashSet<>();
        for (int i = 0; i < gpus.length; i++) {
            Device device = devices.get(i);
            boolean isCpu = Device.Type.CPU.equals(device.getDeviceType());
            int gpu = isCpu ? (firstRank + i) % Math.max(1, count) : device.getDeviceId();
            if (gpu >= count) {
                throw new IllegalArgumentException(
                        "Rank "
                                + (firstRank + i)
                                + " cannot work on GPU "
                                + gpu
                                + ": this process sees "
                                + count
                                + " GPUs, numbered from 0; use fewer ranks, or check"
                                + " CUDA_VISIBLE_DEVICES");
            }
            if (!taken.add(gpu)) {
                throw new IllegalArgumentException(
                        "Rank "
                                + (firstRank + i)
                                + " cannot share GPU "
                                + gpu
                                + " with another rank, NCCL needs one for each: this process sees "
                                + count
                                + " GPUs for "
                                + gpus.length
                                + " ranks; use fewer ranks, or the local backend on the CPU");
            }
            if (isCpu && !NcclLibrary.reachesHostMemory(gpu)) {
                throw new IllegalArgumentException(
                        "Rank "
                                + (firstRank + i)
                                + " cannot work on cpu(): GPU "
                                + gpu
                                + " does not reach host memory; give the rank Device.gpu("
                                + gpu
                                + ") or use the local backend");
            }
            gpus[i] = gpu;
        }
        return gpus;
    }
}
